"""How long a provider asks us to wait, in seconds: its Retry-After, never shortened, as delta-seconds or as a date
relative to the response's own Date; else, on a 429, its X-RateLimit-Reset as a time in seconds since 1970 (Square's
clients read it so). What looks like anything else, seconds to wait or milliseconds, is not guessed at.
"""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from proxy.core.evidence import Response

_A_DAY_S = 86400.0  # further ahead than that is no limit's reset


def retry_after_s(response: Response | None, now: float) -> float | None:
    """How long the provider asks us to wait, or None where it does not say or says nonsense."""
    if response is None:
        return None
    text = response.header("Retry-After")
    if text is None:
        return _until_reset_s(response, now) if response.status_code == 429 else None
    text = text.strip()
    if text.isascii() and text.isdigit():
        return float(text)  # however many digits: too long to wait for is not the same as nothing said
    until = _date(text)
    if until is None:
        return None
    # Measured from the provider's own clock where it shows one: ours may be off.
    since = _date(response.header("Date") or "") or now
    return until - since if until > since else None


def _until_reset_s(response: Response, now: float) -> float | None:
    text = (response.header("X-RateLimit-Reset") or "").strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 11):
        return None
    left_s = float(text) - (_date(response.header("Date") or "") or now)
    return left_s if 0.0 < left_s <= _A_DAY_S else None


def _date(text: str) -> float | None:
    try:
        parsed: datetime = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):  # the last: a time zone of twenty digits
        return None
    return (parsed if parsed.tzinfo is not None else parsed.replace(tzinfo=UTC)).timestamp()
