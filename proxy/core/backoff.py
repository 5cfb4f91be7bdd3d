"""How long to wait before the next try. Pure: the random draw comes in as a number in [0, 1)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

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

    attempts: int = 3
    jitter: Jitter = Jitter.FULL
    base_s: float = 0.1
    cap_s: float = 5.0


def delay_s(rule: RetryRule, tries: int, draw: float, previous_s: float = 0.0) -> float:
    """Wait after the given number of tries (1 after the first). Never above the cap, proportional's +20% aside."""
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


def no_earlier_than(wait_s: float, retry_after_s: float | None, draw: float) -> float:
    """A wait that honours the provider's Retry-After: spread a little past it, never before it."""
    if retry_after_s is None:
        return wait_s
    return max(wait_s, retry_after_s * (1 + _RETRY_AFTER_SPREAD * draw))
