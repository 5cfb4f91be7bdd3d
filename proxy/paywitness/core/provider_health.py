"""Health samples: the sign of the provider's health in one attempt, and counts of them over a sliding window.

Health is not the outcome of a payment. A decline, a 4xx and an accepted payment are all signs of a healthy provider. An
attempt that was not sent for a reason of our own (no free connection, no DNS, an expired lease) is no sign, and is not
counted. `bad` counts failures and doubts, `unknown` only the doubts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from paywitness.core.evidence import Evidence, WireFault
from paywitness.core.record import record
from paywitness.core.result import ResultClass

BUCKETS = 10  # a window slides in tenths
RECENT_BUCKETS = 3  # the last three tenths: in a hard outage the whole window would take 8.5 of 10 s to reach 85% bad


class Health(StrEnum):
    OK = "ok"
    BAD = "bad"
    UNKNOWN = "unknown"
    THROTTLED = "throttled"


@record
class HealthSample:
    health: Health
    duration_s: float = 0.0  # how long ago it began
    slow: bool = False
    retry_after_s: float | None = None  # the wait that the provider asked for, if it refused
    overload: bool = False  # a sign of overload: 429, 503, a timeout

    @property
    def healthy(self) -> bool:
        return self.health is Health.OK and not self.slow


# Faults with which nothing was sent, for a reason in the sidecar or its DNS resolver.
_OUR_OWN_FAULTS = frozenset(
    {
        WireFault.CIRCUIT_OPEN,
        WireFault.NOT_ADMITTED,
        WireFault.POOL_EXHAUSTED,
        WireFault.DNS_FAILURE,
        WireFault.LEASE_OVER,
    }
)
_TIMEOUTS = frozenset(
    {
        WireFault.CONNECT_TIMEOUT,
        WireFault.TLS_TIMEOUT,
        WireFault.WRITE_TIMEOUT,
        WireFault.FIRST_BYTE_TIMEOUT,
        WireFault.BODY_TIMEOUT,
    },
)
_TOO_MANY, _SERVER_ERROR = 429, 500
_OVERLOADED = frozenset({_TOO_MANY, 503, 504})

_HEALTH = {
    ResultClass.RATE_LIMITED: Health.THROTTLED,
    ResultClass.TEMPORARY_PROVIDER_ERROR: Health.BAD,
    ResultClass.NETWORK_CONNECT_FAILURE: Health.BAD,
    ResultClass.NETWORK_READ_TIMEOUT: Health.UNKNOWN,
    ResultClass.PROVIDER_TIMEOUT: Health.UNKNOWN,
    ResultClass.UNKNOWN_OUTCOME: Health.UNKNOWN,
}

UNHEALTHY_CLASSES = frozenset(_HEALTH)  # only with these does it matter how long it asks to be left alone


def health_sample_of(
    result_class: ResultClass,
    evidence: Evidence,
    slow_after_s: float,
    retry_after_s: float | None = None,
) -> HealthSample | None:
    """The health sample of an attempt; None if it shows nothing about the provider's health."""
    if evidence.fault in _OUR_OWN_FAULTS and not evidence.sent:
        return None
    health = _HEALTH.get(result_class, Health.OK)
    slow = evidence.duration_s >= slow_after_s
    retry_after_asked_s = retry_after_s if health is Health.THROTTLED or health is Health.BAD else None
    status = evidence.response.status_code if evidence.response is not None else 0
    overload = health is Health.THROTTLED or evidence.fault in _TIMEOUTS or status in _OVERLOADED
    return HealthSample(health, evidence.duration_s, slow, retry_after_asked_s, overload)


def health_sample_of_inquiry(
    evidence: Evidence, slow_after_s: float, retry_after_s: float | None = None
) -> HealthSample | None:
    """The health sample of an inquiry. It counts whether the provider responded, not what the response means."""
    response = evidence.response
    if response is None:
        result_class = ResultClass.NETWORK_READ_TIMEOUT if evidence.sent else ResultClass.NETWORK_CONNECT_FAILURE
    elif response.status_code == _TOO_MANY:
        result_class = ResultClass.RATE_LIMITED
    else:
        result_class = (
            ResultClass.TEMPORARY_PROVIDER_ERROR if response.status_code >= _SERVER_ERROR else ResultClass.SUCCEEDED
        )
    return health_sample_of(result_class, evidence, slow_after_s, retry_after_s)


@record
class HealthCounts:
    total: int = 0
    bad: int = 0
    slow: int = 0
    unknown: int = 0
    throttled: int = 0
    asked: int = 0  # calls whose refusal said how long to wait

    def plus(self, other: HealthCounts) -> HealthCounts:
        return HealthCounts(
            self.total + other.total,
            self.bad + other.bad,
            self.slow + other.slow,
            self.unknown + other.unknown,
            self.throttled + other.throttled,
            self.asked + other.asked,
        )


NO_HEALTH_COUNTS = HealthCounts()


@dataclass(slots=True)
class _HealthBucket:
    index: int = -1
    counts: list[int] = field(default_factory=lambda: [0, 0, 0, 0, 0, 0])


class HealthWindow:
    """The health samples of one sidecar in the last `window_s`, by tenths. The caller passes the time."""

    def __init__(self, window_s: float) -> None:
        self.bucket_ms = max(1, round(window_s * 1000 / BUCKETS))
        self._buckets = [_HealthBucket() for _ in range(BUCKETS)]

    def add(self, sample: HealthSample, now_ms: int) -> None:
        index = now_ms // self.bucket_ms
        bucket = self._buckets[index % BUCKETS]
        if bucket.index != index:
            bucket.index, bucket.counts = index, [0, 0, 0, 0, 0, 0]
        counts, health = bucket.counts, sample.health
        counts[0] += 1
        counts[2] += sample.slow
        if health is not Health.OK:
            counts[1] += health is Health.BAD or health is Health.UNKNOWN
            counts[3] += health is Health.UNKNOWN
            counts[4] += health is Health.THROTTLED
            counts[5] += sample.retry_after_s is not None

    def counts(self, now_ms: int, buckets: int = BUCKETS) -> HealthCounts:
        """The sum of the newest buckets, the one that is filling included."""
        oldest = now_ms // self.bucket_ms - buckets
        found = [bucket.counts for bucket in self._buckets if bucket.index > oldest]
        return HealthCounts(*(sum(column) for column in zip(*found, strict=True))) if found else NO_HEALTH_COUNTS

    def clear(self) -> None:
        for bucket in self._buckets:
            bucket.index = -1
