"""The rules of deploy/prometheus as the tests read them, and promtool."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import yaml

TOP = Path(__file__).resolve().parents[2]
PROMETHEUS = TOP / "deploy" / "prometheus"
RULES, ALERTS = PROMETHEUS / "rules.yaml", PROMETHEUS / "alerts.yaml"


@cache
def rules_in(file: Path) -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(file.read_text("utf-8"))["groups"] for rule in group["rules"]]


def promtool(*arguments: str) -> str:
    """What it complains about; "" where all is well."""
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr
