"""How much money in doubt is much, by currency: the numbers of deploy/prometheus/rules.yaml."""

from __future__ import annotations

from pathlib import Path

import yaml

_RULES = Path(__file__).parents[1] / "prometheus" / "rules.yaml"
_NAME = "currency:payment_money_in_doubt:much"


def _numbers() -> dict[str, float]:
    groups = yaml.safe_load(_RULES.read_text("utf-8"))["groups"]
    rules = [rule for group in groups for rule in group["rules"] if rule["record"] == _NAME]
    return {rule["labels"]["currency"]: float(rule["expr"].removeprefix("vector(").removesuffix(")")) for rule in rules}


MUCH_MONEY = _numbers()
