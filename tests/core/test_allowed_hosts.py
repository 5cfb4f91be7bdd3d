"""Under which names a listener is asked, and by which pages."""

from __future__ import annotations

import pytest

from paywitness.core.allowed_hosts import AllowedHosts, read_allowed_hosts

NONE_GIVEN = AllowedHosts()
GIVEN = read_allowed_hosts(["Pay.Example.com", "*.corp.example.com"])


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.0.0.1:8700",
        "10.1.2.3:8701",
        "[::1]:8700",
        "[fd00::1]",
        "localhost:8700",
        "LOCALHOST.",
        "shop.localhost",
        "paywitness:8700",
        "payments-7d9f-abcde",
        "paywitness.payments.svc:8700",
        "paywitness.payments.svc.cluster.local",
        "proxy.internal",
        "api.acme.test",
        "",
    ],
)
def test_addresses_and_names_that_no_stranger_can_register_are_ours(host: str) -> None:
    assert NONE_GIVEN.allows_host(host)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8700",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "127.1",
        "paywitness.payments",
        "a b",
        "x@127.0.0.1",
        "127.0.0.1:99999",
        "[::1",
    ],
)
def test_any_other_name_is_not(host: str) -> None:
    assert not NONE_GIVEN.allows_host(host)


def test_names_that_were_given_are_ours() -> None:
    assert GIVEN.allows_host("pay.example.com:443")
    assert GIVEN.allows_host("A.b.corp.example.com")
    assert not GIVEN.allows_host("corp.example.com")
    assert not GIVEN.allows_host("evilcorp.example.com")
    assert not GIVEN.allows_host("pay.example.com.evil.example")


@pytest.mark.parametrize("name", ["", "a b", "pay.example.com:80", "*.com", "*", "https://a.example", "a.*.example"])
def test_what_is_no_name_cannot_be_given(name: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        read_allowed_hosts([name])


@pytest.mark.parametrize(
    ("origins", "sites", "allowed"),
    [
        ((), (), True),
        (("http://127.0.0.1:8700",), ("same-origin",), True),
        ((), ("none",), True),
        (("https://pay.example.com",), (), True),
        ((), ("cross-site",), False),
        ((), ("same-site",), False),
        (("http://127.0.0.1:8700",), ("cross-site",), False),
        (("http://evil.example",), (), False),
        (("http://127.0.0.1:9999",), (), False),
        (("null",), (), False),
        (("",), (), False),
        (("file://127.0.0.1:8700",), (), False),
        (("http://127.0.0.1:8700", "http://evil.example"), (), False),
    ],
)
def test_only_our_own_pages_may_ask(origins: tuple[str, ...], sites: tuple[str, ...], allowed: bool) -> None:
    assert GIVEN.allows_origin("127.0.0.1:8700", origins, sites) is allowed
