"""Writes `base/prometheusrule.yaml` from the rules of deploy/prometheus: `python -m deploy.kubernetes`.

Kustomize reads no file outside of its own folder, and the operator wants the rules inside of a resource.
"""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent
RULES = HERE.parent / "prometheus"
WRITTEN = HERE / "base" / "prometheusrule.yaml"

_HEAD = """\
# Written by `python -m deploy.kubernetes` from deploy/prometheus. Edit it there.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: paywitness
  labels:
    app.kubernetes.io/name: paywitness
spec:
  groups:
"""


def resource() -> str:
    """The groups of both files, line by line as they stand there."""
    lines = []
    for name in ("rules.yaml", "alerts.yaml"):
        _, _, groups = (RULES / name).read_text().partition("\ngroups:\n")
        lines += [*groups.strip("\n").splitlines(), ""]
    return _HEAD + "\n".join(f"  {line}" if line else "" for line in lines[:-1]) + "\n"


if __name__ == "__main__":
    WRITTEN.write_text(resource())
    print(f"Wrote {WRITTEN.relative_to(HERE.parents[1])}.")
