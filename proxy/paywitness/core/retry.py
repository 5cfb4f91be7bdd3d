"""Retry timing: how long to wait before the next attempt. Pure: the random draw is a number in [0, 1) that the caller
passes.

A wait is backoff with jitter, and never shorter than the provider requests. The provider's request is its Retry-After:
delta-seconds, or a date relative to the response's Date. If a 429 has none, it is its X-RateLimit-Reset as seconds
since 1970 (as Square's clients read it). Nothing else is guessed. Whether to retry at all is in `decide`; how many
retries the fleet may make is in `budget`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from paywitness.core import policy_defaults
from paywitness.core.evidence import Response
from paywitness.core.provider_time import http_date

_DOUBLINGS_MAX = 30  # 2**30 times any base is beyond every cap; more would only overflow
_RETRY_AFTER_SPREAD = 0.2  # a provider's Retry-After is stretched by up to a fifth, never shortened


class Jitter(StrEnum):
    FULL = "full"
    EQUAL = "equal"
    DECORRELATED = "decorrelated"
    PROPORTIONAL = "proportional"


@dataclass(frozen=True, slots=True)
class RetryRule:
    """How often and how far apart. `attempts` counts tries, not retries."""

    attempts: int = policy_defaults.RETRY_ATTEMPTS
    jitter: Jitter = Jitter(policy_defaults.RETRY_JITTER)
    base_s: float = policy_defaults.RETRY_BASE_S
    cap_s: float = policy_defaults.RETRY_CAP_S


def backoff_delay_s(rule: RetryRule, tries: int, draw: float, previous_s: float = 0.0) -> float:
    """The wait after the given number of tries (1 after the first). It is never above the cap, except for
    proportional's +20%."""
    step = min(rule.cap_s, rule.base_s * 2.0 ** min(max(tries, 1) - 1, _DOUBLINGS_MAX))
    match rule.jitter:
        case Jitter.FULL:
            return draw * step
        case Jitter.EQUAL:
            return step / 2 + draw * step / 2
        case Jitter.DECORRELATED:
            upper = max(rule.base_s, 3 * (previous_s or rule.base_s))
            return min(rule.cap_s, rule.base_s + draw * (upper - rule.base_s))
        case Jitter.PROPORTIONAL:
            return step * (0.8 + 0.4 * draw)


def at_least_retry_after_s(wait_s: float, retry_after_s: float | None, draw: float) -> float:
    """A wait that respects the provider's Retry-After: a little longer, never shorter."""
    if retry_after_s is None:
        return wait_s
    return max(wait_s, retry_after_s * (1 + _RETRY_AFTER_SPREAD * draw))


# --- Retry-After

_A_DAY_S = 86400.0  # a reset that is further ahead is not that of a limit


def retry_after_of(response: Response | None, now: float) -> float | None:
    """How long the provider asks us to wait. None if it does not say, or says nonsense."""
    if response is None:
        return None
    text = response.header("Retry-After")
    if text is None:
        return _until_reset_s(response, now) if response.status_code == 429 else None
    text = text.strip()
    if text.isascii() and text.isdigit():
        return float(text)  # with any number of digits: too long to wait for is not the same as no Retry-After
    until = http_date(text)
    if until is None:
        return None
    # Measured from the provider's own clock if the response shows it, because ours may be off.
    since = http_date(response.header("Date") or "") or now
    return until - since if until > since else None


def _until_reset_s(response: Response, now: float) -> float | None:
    text = (response.header("X-RateLimit-Reset") or "").strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 11):
        return None
    left_s = float(text) - (http_date(response.header("Date") or "") or now)
    return left_s if 0.0 < left_s <= _A_DAY_S else None
