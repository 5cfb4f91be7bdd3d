"""Every route of every dialect, and how a path finds its own."""

from __future__ import annotations

from collections.abc import Sequence

from proxy.sandbox.dialects import acme, payouts, stripe
from proxy.sandbox.dialects.route import Route

ROUTES: tuple[Route, ...] = (*acme.ROUTES, *payouts.ROUTES, *stripe.ROUTES)


def _indexed() -> dict[tuple[str, int], list[Route]]:
    index: dict[tuple[str, int], list[Route]] = {}
    for route in ROUTES:
        index.setdefault((route.method, route.pattern.count("/")), []).append(route)
    return index


_BY_METHOD_AND_LENGTH = _indexed()


def find_route(method: str, segments: Sequence[str]) -> tuple[Route, dict[str, str]] | None:
    """The first that fits; a dialect lists its literal paths before those with holes."""
    for route in _BY_METHOD_AND_LENGTH.get((method, len(segments)), ()):
        names = route.match(segments)
        if names is not None:
            return route, names
    return None
