"""What a history entry keeps of a fallback's routes, as JSON; must read what earlier versions wrote."""

from __future__ import annotations

from typing import Any

from paywitness.core.fallback import FallbackCause, FallbackChoice, RouteCandidate, RouteVerdict

_CAUSES, _VERDICTS = frozenset(FallbackCause), frozenset(RouteVerdict)


def choice_to_value(choice: FallbackChoice) -> dict[str, Any]:
    routes = [(candidate.to, candidate.verdict, candidate.detail) for candidate in choice.candidates]
    return {"cause": choice.cause, "routes": routes, "revision": choice.revision, "attempts": choice.attempts}


def choice_from_value(value: dict[str, Any] | None) -> FallbackChoice | None:
    """None also for a cause or verdict of a later release: it is told to people, and nothing is decided by it."""
    if value is None or value["cause"] not in _CAUSES:
        return None
    routes = [route[:3] for route in value["routes"] if route[1] in _VERDICTS]
    return FallbackChoice(
        FallbackCause(value["cause"]),
        tuple(RouteCandidate(to, RouteVerdict(verdict), detail) for to, verdict, detail in routes),
        value["revision"],
        value["attempts"],
    )
