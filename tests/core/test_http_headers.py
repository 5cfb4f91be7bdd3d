"""Of a `traceparent` only the trace's id is read, and only where the header is one."""

from __future__ import annotations

import pytest

from paywitness.core.credential_and_hop_headers import trace_id_of

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"


@pytest.mark.parametrize("header", [f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-00", f"cc-{TRACE}-{SPAN}-01-later"])
def test_the_id_of_a_trace_is_read(header: str) -> None:
    assert trace_id_of(header) == TRACE


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "4242 4242 4242 4242",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}0-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01\n",
    ],
)
def test_what_is_no_traceparent_has_no_id(header: str | None) -> None:
    assert trace_id_of(header) is None
