"""The provider's own clock, as far as the `Date` of its responses shows it. Pure.

Our clock and the journal's may be off. What a provider dates (a denial, the entries of a list) is compared with the
moment at which we sent an attempt by the provider's clock alone.
"""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from paywitness.core.evidence import Response
from paywitness.core.record import record

# What a list must reach back if the provider shows no clock: no clock that keeps a day's time is further off.
UNKNOWN_CLOCK_S = 86_400.0
_WHOLE_SECOND_S = 1.0  # a Date says no less


def http_date(text: str) -> float | None:
    """The date of a header, in seconds since 1970."""
    try:
        parsed: datetime = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):  # the last: a time zone of twenty digits
        return None
    return (parsed if parsed.tzinfo is not None else parsed.replace(tzinfo=UTC)).timestamp()


def time_in(value: object) -> float | None:
    """A time in an object: seconds since 1970, or RFC 3339."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value) if 0 < value < 1e11 else None
    if not isinstance(value, str):
        return None
    if value.isascii() and value.isdigit():
        return float(value) if len(value) < 12 else None
    try:
        read = datetime.fromisoformat(value)
    except ValueError:
        return None
    return read.timestamp() if read.tzinfo is not None else None


@record
class ProviderTime:
    """What one response shows of the provider's clock, and when by that clock the first attempt was sent. How long ago
    that was is read twice (`ages`): the store's clock may have been set since."""

    date_at: float
    sent_age_max_s: float  # of the first attempt, when the response arrived
    sent_age_min_s: float
    duration_s: float  # from the request to its arrival

    @classmethod
    def of(
        cls, response: Response | None, sent_age_max_s: float, sent_age_min_s: float, duration_s: float
    ) -> ProviderTime | None:
        """None if it shows none."""
        date_at = http_date(response.header("Date") or "") if response is not None else None
        return None if date_at is None else cls(date_at, sent_age_max_s, sent_age_min_s, duration_s)

    @property
    def earliest_sent_at(self) -> float:
        """The earliest that the first attempt can have been sent, by the provider's clock."""
        return self.date_at - self.sent_age_max_s

    @property
    def latest_sent_at(self) -> float:
        """The latest. The Date was rounded down, and the response took its time."""
        return self.date_at - self.sent_age_min_s + _WHOLE_SECOND_S + self.duration_s
