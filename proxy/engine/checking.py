"""Checking: the scheme that a policy names, with what it is told; and what a delivery under it says."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import lru_cache

from proxy.core.body import Tree, decode
from proxy.core.call import Headers
from proxy.core.notice import NoticeRules
from proxy.engine.delivery import tree_in
from proxy.schemes.base import Scheme, Wrapped
from proxy.schemes.named import scheme_named

_log = logging.getLogger("paywitness.webhooks")
_ENVIRONMENT = "env:"


def scheme_for(rules: NoticeRules, environment: Mapping[str, str]) -> Scheme | None:
    """None for one whose option names a variable that is not set: nothing can be checked by it."""
    told = {
        name: environment.get(value.removeprefix(_ENVIRONMENT), "") if value.startswith(_ENVIRONMENT) else value
        for name, value in rules.options.items()
    }
    return _made(rules.scheme, tuple(sorted(told.items())))


@lru_cache(maxsize=64)
def _made(name: str, options: tuple[tuple[str, str], ...]) -> Scheme | None:
    try:
        return scheme_named(name, dict(options))
    except ValueError as error:
        _log.error("webhooks cannot be checked by the scheme %s: %s", name, error)  # once: the answer is remembered
        return None


def tree_told(scheme: Scheme, headers: Headers, body: bytes) -> Tree:
    """What a delivery tells, which is JSON unless its scheme says otherwise. Raises BodyError."""
    if not isinstance(scheme, Wrapped):
        return tree_in(headers, body)
    text, encoding = scheme.told(body)
    return decode(text, encoding)
