"""Which addresses are the internet's."""

from __future__ import annotations

import pytest

from paywitness.core.addresses import is_private, is_public


@pytest.mark.parametrize(
    "address",
    [
        *(
            "127.0.0.1",
            "127.8.8.8",
            "10.0.0.1",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
        ),
        *("224.0.0.1", "255.255.255.255", "192.0.2.1", "198.18.0.1", "::1", "::", "fe80::1", "fe80::1%eth0", "fd00::1"),
        *("::ffff:10.0.0.1", "::ffff:169.254.169.254", "64:ff9b::a00:1", "2002:7f00:1::", "ff02::1", "no address", ""),
    ],
)
def test_what_is_not_the_internets(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["1.1.1.1", "8.8.8.8", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::808:808"])
def test_what_is(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize("name", ["localhost", "psp", "psp.internal", "api.acme.test", "10.1.2.3", "::1", "a.local"])
def test_names_that_cannot_be_on_the_internet(name: str) -> None:
    assert is_private(name)


@pytest.mark.parametrize("name", ["api.stripe.com", "1.1.1.1", "localhost.example.com", "test.com"])
def test_names_that_can(name: str) -> None:
    assert not is_private(name)
