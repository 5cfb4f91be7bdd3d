"""Redirect mode in a network namespace of the test's own: real rules, a real kernel, SDKs that know of no proxy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.sidecar import TOP
from tests.transparent.namespace_addresses import BANK, BANK_V6, PROVIDERS, UID

pytestmark = pytest.mark.slow


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def namespace() -> Iterator[str]:
    """A network of its own, with nothing in it but loopback and the addresses of those that are called."""
    name = f"paywitness-{os.getpid()}"
    hosts = Path("/etc/netns") / name / "hosts"
    hosts.parent.mkdir(parents=True)
    lines = ["127.0.0.1 localhost", "::1 localhost", *(f"{v4} {host}" for host, (v4, _) in PROVIDERS.items())]
    hosts.write_text("\n".join([*lines, ""]))
    run("ip", "netns", "add", name)
    try:
        run("ip", "-n", name, "link", "set", "lo", "up")
        for address in (BANK, *(v4 for v4, _ in PROVIDERS.values())):
            run("ip", "-n", name, "address", "add", f"{address}/32", "dev", "lo")
        for address in (BANK_V6, *(v6 for _, v6 in PROVIDERS.values())):
            run("ip", "-n", name, "address", "add", f"{address}/128", "dev", "lo", "nodad")
        yield name
    finally:
        run("ip", "netns", "delete", name)
        hosts.unlink()
        hosts.parent.rmdir()


@pytest.mark.parametrize("backend", ["nft", "iptables"])
def test_services_that_know_of_no_proxy_are_carried(namespace: str, tmp_path: Path, backend: str) -> None:
    """One sitting for all of it: the kernel's part is slow to put up."""
    home = tmp_path / "home"
    home.mkdir()
    inside = [sys.executable, "-m", "tests.transparent.in_namespace", str(home), backend]
    done = subprocess.run(
        ["ip", "netns", "exec", namespace, *inside], cwd=TOP, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout)
    for host, told in seen["sdks"].items():  # each lost its answer
        assert (told["paid"], told["effects"]) == (True, 1), (host, told)
    assert (seen["bank"], seen["bank_v6"]) == ("bank", "bank")  # untouched: its own certificate was seen
    assert (seen["plain"], seen["plain_v6"]) == (404, 404)  # the double's own answer, in the clear
    assert str(UID) in seen["rules"]
    assert seen["refused"] == "ConnectionRefusedError"  # the sidecar was killed, and the rules still stood
    assert seen["spared"] == ["bank", "bank", "ConnectionRefusedError"]
    assert seen["unredirected"] == "bank"  # after the rules were removed
    left = run("ip", "netns", "exec", namespace, "nft", "list", "ruleset")
    assert "paywitness" not in left.lower()
