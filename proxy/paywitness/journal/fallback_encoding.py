"""A fallback's routes in a history entry, as JSON. Entries of earlier versions must stay readable."""

from __future__ import annotations

from typing import Any

from paywitness.core.fallback import FallbackCause, FallbackChoice, RouteCandidate, RouteVerdict

_CAUSES, _VERDICTS = frozenset(FallbackCause), frozenset(RouteVerdict)


def choice_to_value(choice: FallbackChoice) -> dict[str, Any]:
    routes = [(candidate.to, candidate.verdict, candidate.detail) for candidate in choice.candidates]
    return {"cause": choice.cause, "routes": routes, "revision": choice.revision, "attempts": choice.attempts}


def choice_from_value(value: dict[str, Any] | None) -> FallbackChoice | None:
    """The choice in an entry. Also None if a newer release wrote its cause or verdict: the choice is only shown to
    people, and decides nothing."""
    if value is None or value["cause"] not in _CAUSES:
        return None
    routes = [route[:3] for route in value["routes"] if route[1] in _VERDICTS]
    return FallbackChoice(
        FallbackCause(value["cause"]),
        tuple(RouteCandidate(to, RouteVerdict(verdict), detail) for to, verdict, detail in routes),
        value["revision"],
        value["attempts"],
    )
