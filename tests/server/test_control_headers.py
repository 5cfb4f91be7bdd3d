"""The caller's headers, sorted: what goes on, and what was meant for us."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paywitness.core.call import CallerOptions, Priority
from paywitness.core.problems import Problem
from paywitness.server.errors import RequestRejected
from paywitness.server.heads import read_caller_options, read_head, without_respond_async

HOST = (b"Host", b"127.0.0.1:8700")


@pytest.mark.parametrize(
    ("name", "value", "wishes"),
    [
        (b"paywitness-key", b"k", CallerOptions(key="k")),
        (b"paywitness-key", b"k" * 255, CallerOptions(key="k" * 255)),
        (b"paywitness-intent", b"order 1", CallerOptions(intent="order 1")),
        (b"paywitness-account", b"main", CallerOptions(account="main")),
        (b"paywitness-timeout-ms", b"1", CallerOptions(timeout_s=0.001)),
        (b"paywitness-timeout-ms", b"600000", CallerOptions(timeout_s=600.0)),
        (b"paywitness-priority", b"medium", CallerOptions(priority=Priority.MEDIUM)),
        (b"paywitness-distinct", b"a reason", CallerOptions(distinct="a reason")),
    ],
)
def test_a_wish_is_read(name: bytes, value: bytes, wishes: CallerOptions) -> None:
    assert read_caller_options({name: value}) == wishes


def test_a_caller_who_says_nothing_of_priority_leaves_it_to_the_policy() -> None:
    assert read_caller_options({b"paywitness-key": b"k"}).priority is None
    assert read_head((HOST,), is_http11=True).options.priority is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (b"paywitness-key", b""),
        (b"paywitness-key", b"   "),
        (b"paywitness-key", b"k" * 256),
        (b"paywitness-key", "é".encode()),
        (b"paywitness-intent", b"a\tb"),
        (b"paywitness-account", b"\xff"),
        (b"paywitness-timeout-ms", b"0"),
        (b"paywitness-timeout-ms", b"-1"),
        (b"paywitness-timeout-ms", b"1.5"),
        (b"paywitness-timeout-ms", b"600001"),
        (b"paywitness-timeout-ms", b"9" * 5000),
        (b"paywitness-timeout-ms", b"1e3"),
        (b"paywitness-timeout-ms", b"\xb2"),
        (b"paywitness-priority", b"HIGH"),
        (b"paywitness-priority", b""),
        (b"paywitness-distinct", b""),
        (b"paywitness-outcome", b"succeeded"),
    ],
)
def test_a_wish_that_makes_no_sense_is_refused(name: bytes, value: bytes) -> None:
    with pytest.raises(RequestRejected) as refused:
        read_caller_options({name: value})
    assert refused.value.kind is Problem.MALFORMED
    assert name.decode().title() in refused.value.detail
    assert len(refused.value.detail) < 300


def test_a_wish_may_not_be_sent_twice() -> None:
    with pytest.raises(RequestRejected, match="malformed") as refused:
        read_head((HOST, (b"Paywitness-Key", b"a"), (b"paywitness-key", b"a")), is_http11=True)
    assert "Paywitness-Key was sent twice" in refused.value.detail


@pytest.mark.parametrize(
    ("value", "rest"),
    [
        (b"respond-async", None),
        (b"Respond-Async", None),
        (b" respond-async ,", None),
        (b"return=representation", b"return=representation"),
        (b"respond-async, return=representation", b"return=representation"),
        (b"return=representation ,  respond-async", b"return=representation"),
        (b"a, respond-async, b", b"a, b"),
        (b"respond-async; wait=5, handling=lenient", b"handling=lenient"),
        (b'respond-async="", wait=10', b"wait=10"),
        (b"respond-async,respond-async", None),
        (b"respond-asynchronously", b"respond-asynchronously"),
        (b"x-respond-async", b"x-respond-async"),
        (b"return=minimal; respond-async", b"return=minimal; respond-async"),
        (b'foo="a, respond-async, b"', b'foo="a, respond-async, b"'),
        (b'foo="a\\", respond-async", respond-async', b'foo="a\\", respond-async"'),
    ],
)
def test_of_prefer_only_respond_async_is_ours(value: bytes, rest: bytes | None) -> None:
    assert without_respond_async(value) == rest


@given(st.binary(max_size=40))
def test_preferences_without_our_word_stay_as_they_are(value: bytes) -> None:
    if b"respond-async" not in value.lower():
        assert without_respond_async(value) == value


def test_several_prefer_headers_are_each_kept() -> None:
    headers = (HOST, (b"Prefer", b"respond-async"), (b"prefer", b"a"), (b"PREFER", b"respond-async, b"))
    assert read_head(headers, is_http11=True).headers == ((b"prefer", b"a"), (b"PREFER", b"b"))


@pytest.mark.parametrize("value", [b"127.0.0.1", b"[::1]:8700", b"api.acme.test", b"localhost:1", b"a_b-c~d"])
def test_a_host_is_accepted_and_does_not_go_on(value: bytes) -> None:
    assert read_head(((b"hOsT", value),), is_http11=True).headers == ()


@pytest.mark.parametrize("value", [b"", b"a b", b"a/b", b"a@b", b"a\tb", b"\xff", b"a?b", b"a#b"])
def test_what_is_no_host_is_refused(value: bytes) -> None:
    with pytest.raises(RequestRejected):
        read_head(((b"Host", value),), is_http11=True)


def test_http_1_0_needs_no_host() -> None:
    assert read_head((), is_http11=False).headers == ()


def test_what_the_connection_header_names_does_not_go_on() -> None:
    headers = (HOST, (b"Connection", b"close, X-One"), (b"x-one", b"1"), (b"connection", b"x-two"), (b"X-Two", b"2"))
    assert read_head((*headers, (b"X-Three", b"3")), is_http11=True).headers == ((b"X-Three", b"3"),)


def test_the_body_is_announced() -> None:
    assert read_head((HOST,), is_http11=True).length is None
    assert read_head((HOST, (b"Content-Length", b"0007")), is_http11=True).length == 7
    assert read_head((HOST, (b"Transfer-Encoding", b"Chunked")), is_http11=True).chunked


@pytest.mark.parametrize(("value", "is_http11"), [(b"chunked", False), (b"gzip, chunked", True), (b"identity", True)])
def test_a_coding_that_can_be_read_in_two_ways_is_refused(value: bytes, is_http11: bool) -> None:
    with pytest.raises(RequestRejected) as refused:
        read_head((HOST, (b"Transfer-Encoding", value)), is_http11=is_http11)
    assert refused.value.kind is Problem.MALFORMED
