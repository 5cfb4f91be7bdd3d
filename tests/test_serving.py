"""The running process as its admin port shows it."""

from __future__ import annotations

import asyncio
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

from proxy.admin.view import Readiness
from proxy.serving import AdminView, Life


def test_calls_should_come_from_when_it_listens_until_it_is_told_to_stop() -> None:
    life = Life(asyncio.Event())
    parts: dict[str, Any] = {field.name: None for field in fields(AdminView)}
    view = AdminView(**{**parts, "reload": SimpleNamespace(problems=()), "life": life})
    assert view.readiness() == Readiness(starting=True)
    life.open.set()
    assert view.readiness() == Readiness()
    life.stop.set()
    assert view.readiness() == Readiness(draining=True)
