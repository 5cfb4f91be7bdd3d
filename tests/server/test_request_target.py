"""The request line's path, taken apart. What is matched and what goes on are the same thing, or it is refused."""

from __future__ import annotations

from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paywitness.core.problems import Problem
from paywitness.server.errors import RequestRejected
from paywitness.server.request import RequestTarget, read_target

RAW = st.text(st.sampled_from("/.%;\\?#aZ2eE5fFcC0+~:@é "), max_size=20).map(lambda text: "/" + text)


@pytest.mark.parametrize(
    ("raw", "target"),
    [
        ("/", RequestTarget("", "/", "", ())),
        ("/?x", RequestTarget("", "/", "x", ())),
        ("/acme", RequestTarget("acme", "/", "", ())),
        ("/acme/", RequestTarget("acme", "/", "", ())),
        ("/acme/v1/a?b?c", RequestTarget("acme", "/v1/a", "b?c", ("v1", "a"))),
        ("/acme/v1/%41%2b", RequestTarget("acme", "/v1/%41%2b", "", ("v1", "A+"))),
        ("/acme/a;b", RequestTarget("acme", "/a;b", "", ("a;b",))),
        ("/acme/.well-known/x", RequestTarget("acme", "/.well-known/x", "", (".well-known", "x"))),
    ],
)
def test_a_path_is_taken_apart(raw: str, target: RequestTarget) -> None:
    assert read_target(raw) == target


def test_a_providers_own_port_needs_no_prefix() -> None:
    assert read_target("/v1/a", "acme") == RequestTarget("acme", "/v1/a", "", ("v1", "a"))
    assert read_target("/", "acme") == RequestTarget("acme", "/", "", ())
    assert read_target("/paywitness/operations/x", "acme").prefix == "paywitness"


@pytest.mark.parametrize("raw", ["", "*", "acme/v1", "http://acme/v1", "acme:443"])
def test_what_is_no_path_is_refused(raw: str) -> None:
    with pytest.raises(RequestRejected) as refused:
        read_target(raw)
    assert refused.value.kind is Problem.PATH_NOT_ALLOWED


@given(RAW)
def test_whatever_passes_means_the_same_to_the_match_and_to_the_provider(raw: str) -> None:
    try:
        target = read_target("/acme" + raw)
    except RequestRejected:
        return
    if target.query:
        assert f"{target.path}?{target.query}" == raw
    else:
        assert target.path == raw.removesuffix("?")
    assert target.path.isascii()
    decoded = tuple(unquote(segment, errors="strict") for segment in target.path.split("/")[1:])
    assert target.segments == (() if target.path == "/" else decoded)
    for segment in target.segments:
        assert segment not in {"", ".", ".."}
        assert not {"/", "\\", "\0"} & set(segment)


@given(RAW)
def test_the_short_way_and_the_long_way_agree(raw: str) -> None:
    """A path without escapes takes a short cut; appending a harmless escape makes it go the long way."""

    def outcome(path: str) -> tuple[str, ...] | None:
        try:
            return read_target(path).segments
        except RequestRejected:
            return None

    path = "/acme" + raw.partition("?")[0] + "/x"
    short = outcome(path)
    long = outcome(path.removesuffix("x") + "%78")
    assert short == long
