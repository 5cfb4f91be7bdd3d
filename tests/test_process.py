"""The running process as its admin port shows it."""

from __future__ import annotations

import asyncio
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

from paywitness.admin.backend import Readiness
from paywitness.process import AdminView, ProcessState


def test_calls_should_come_from_when_it_listens_until_it_is_told_to_stop() -> None:
    life = ProcessState(asyncio.Event())
    ages = SimpleNamespace(jumps=0, awaits_dates=False)
    review = SimpleNamespace(journal_writer=SimpleNamespace(ages=ages))
    parts: dict[str, Any] = {field.name: None for field in fields(AdminView)}
    view = AdminView(**{**parts, "reload": SimpleNamespace(problems=()), "state": life, "review": review})
    assert view.readiness() == Readiness(starting=True)
    life.listening.set()
    assert view.readiness() == Readiness()
    life.stop.set()
    assert view.readiness() == Readiness(draining=True)
