"""Write the dashboards: `make dashboards`."""

from __future__ import annotations

from pathlib import Path

from deploy.grafana.boards import BOARDS
from deploy.grafana.drawing import drawn

if __name__ == "__main__":
    for board in BOARDS:
        (Path(__file__).parent / f"{board.name}.json").write_text(drawn(board), encoding="utf-8")
