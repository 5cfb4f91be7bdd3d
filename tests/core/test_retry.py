"""Waits: bounded by their jitter and their cap, and never shorter than the provider asks."""

from __future__ import annotations

from itertools import product

import pytest

from paywitness.core.retry import Jitter, RetryRule, at_least_retry_after_s, backoff_delay_s, retry_after_of
from tests.core.samples import response

DRAWS = (0.0, 0.25, 0.5, 0.999999)
TRIES = (0, 1, 2, 3, 7, 40, 10_000)
DATE = "Wed, 21 Oct 2015 07:28:00 GMT"
DATE_AT = 1445412480.0


def rule(jitter: Jitter, base_s: float = 0.1, cap_s: float = 5.0) -> RetryRule:
    return RetryRule(jitter=jitter, base_s=base_s, cap_s=cap_s)


def step_s(tries: int) -> float:
    return min(5.0, 0.1 * 2.0 ** (max(tries, 1) - 1)) if tries < 100 else 5.0


@pytest.mark.parametrize(
    ("jitter", "least", "most"),
    [(Jitter.FULL, 0.0, 1.0), (Jitter.EQUAL, 0.5, 1.0), (Jitter.PROPORTIONAL, 0.8, 1.2)],
)
def test_a_wait_lies_within_its_jitter(jitter: Jitter, least: float, most: float) -> None:
    for tries, draw in product(TRIES, DRAWS):
        wait = backoff_delay_s(rule(jitter), tries, draw)
        assert least * step_s(tries) <= wait <= most * step_s(tries), (tries, draw)
    for tries in TRIES:
        assert backoff_delay_s(rule(jitter), tries, 0.0) == pytest.approx(least * step_s(tries))


def test_a_decorrelated_wait_grows_from_the_one_before_it() -> None:
    for previous_s, draw in product((0.0, 0.1, 1.0, 4.0, 100.0), DRAWS):
        wait = backoff_delay_s(rule(Jitter.DECORRELATED), 3, draw, previous_s)
        assert 0.1 <= wait <= min(5.0, 3 * (previous_s or 0.1))


@pytest.mark.parametrize("jitter", Jitter)
def test_no_wait_exceeds_its_cap_but_for_the_fifth_of_proportional(jitter: Jitter) -> None:
    most = 5.0 * (1.2 if jitter is Jitter.PROPORTIONAL else 1.0)
    for base_s, tries, draw, previous_s in product((0.001, 0.1, 50.0), TRIES, DRAWS, (0.0, 4.9, 1e9)):
        assert 0.0 <= backoff_delay_s(rule(jitter, base_s), tries, draw, previous_s) <= most


@pytest.mark.parametrize("asked_s", [0.0, 0.5, 30.0, 86400.0, float("inf")])
def test_what_the_provider_asks_for_is_never_shortened(asked_s: float) -> None:
    for wait_s, draw in product((0.0, 1.0, 100.0), DRAWS):
        wait = at_least_retry_after_s(wait_s, asked_s, draw)
        assert wait >= asked_s
        assert wait >= wait_s
        assert wait <= max(wait_s, asked_s * 1.2)


def test_where_the_provider_asks_for_nothing_the_wait_is_ours() -> None:
    assert at_least_retry_after_s(1.5, None, 0.9) == 1.5


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ((), None),
        ((("Retry-After", "0"),), 0.0),
        ((("retry-after", " 120 "),), 120.0),
        ((("Retry-After", "99999999999"),), 99999999999.0),
        ((("Retry-After", "9" * 400),), float("inf")),
        ((("Retry-After", "-5"),), None),
        ((("Retry-After", "soon"),), None),
        ((("Retry-After", ""),), None),
        ((("Retry-After", "\xb2"),), None),
        ((("Retry-After", DATE.replace("GMT", "+" + "9" * 20)),), None),
        ((("Retry-After", DATE),), 100.0),
        ((("Retry-After", DATE), ("Date", "Wed, 21 Oct 2015 07:27:30 GMT")), 30.0),
        ((("Retry-After", DATE), ("Date", DATE)), None),
        ((("Retry-After", DATE), ("Date", "nonsense")), 100.0),
    ],
)
def test_retry_after_is_read_as_seconds_or_as_a_date_of_the_providers_clock(
    headers: tuple[tuple[str, str], ...], expected: float | None
) -> None:
    assert retry_after_of(response(429, b"", *headers), DATE_AT - 100.0) == expected


@pytest.mark.parametrize(
    ("status_code", "headers", "expected"),
    [
        (429, (("X-RateLimit-Reset", f"{DATE_AT:.0f}"),), 100.0),
        (429, (("x-ratelimit-reset", f" {DATE_AT:.0f} "), ("Date", "Wed, 21 Oct 2015 07:27:30 GMT")), 30.0),
        (429, (("X-RateLimit-Reset", f"{DATE_AT:.0f}"), ("Retry-After", "7")), 7.0),
        (429, (("X-RateLimit-Reset", f"{DATE_AT:.0f}"), ("Retry-After", "soon")), None),
        (429, (("X-RateLimit-Reset", f"{DATE_AT - 100:.0f}"),), None),
        (429, (("X-RateLimit-Reset", f"{DATE_AT + 86301:.0f}"),), None),
        (429, (("X-RateLimit-Reset", "30"),), None),
        (429, (("X-RateLimit-Reset", f"{DATE_AT:.0f}000"),), None),
        (429, (("X-RateLimit-Reset", "9" * 400),), None),
        (429, (("X-RateLimit-Reset", "soon"),), None),
        (503, (("X-RateLimit-Reset", f"{DATE_AT:.0f}"),), None),
    ],
)
def test_a_limits_reset_is_waited_for_where_nothing_else_is_asked_for(
    status_code: int, headers: tuple[tuple[str, str], ...], expected: float | None
) -> None:
    assert retry_after_of(response(status_code, b"", *headers), DATE_AT - 100.0) == expected


def test_without_a_response_nothing_is_asked_for() -> None:
    assert retry_after_of(None, 0.0) is None
