"""Retry-After as a number of seconds, never shortened: delta-seconds, or a date relative to the response's own Date."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from proxy.core.evidence import Response


def retry_after_s(response: Response | None, now: float) -> float | None:
    """How long the provider asks us to wait, or None where it does not say or says nonsense."""
    text = response.header("Retry-After") if response is not None else None
    if response is None or text is None:
        return None
    text = text.strip()
    if text.isascii() and text.isdigit():
        return float(text)  # however many digits: too long to wait for is not the same as nothing said
    until = _date(text)
    if until is None:
        return None
    # Measured from the provider's own clock where it shows one: ours may be off.
    since = _date(response.header("Date") or "") or now
    return until - since if until > since else None


def _date(text: str) -> float | None:
    try:
        parsed: datetime = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError):
        return None
    return (parsed if parsed.tzinfo is not None else parsed.replace(tzinfo=UTC)).timestamp()
