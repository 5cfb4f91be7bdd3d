"""What runs within a network namespace that a test has made: `python -m tests.transparent.in_namespace HOME BACKEND`.

A sidecar of a group of its own, rules by `paywitness redirect`, and clients that know of neither. Says what it saw, as
JSON.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import stripe

from paywitness.clock import SystemClock
from paywitness.transparent.local_ca import HostCertificates, make_local_ca
from tests.e2e.sidecar import TOP
from tests.sdks import test_checkout, test_mollie, test_stripe
from tests.sdks.checkout_double import CheckoutDouble
from tests.sdks.conftest import House
from tests.sdks.double import Double, Fault
from tests.sdks.mollie_double import MollieDouble
from tests.sdks.scenarios import Told
from tests.sdks.stripe_double import StripeDouble
from tests.transparent.namespace_addresses import BANK, BANK_V6, GID, PROVIDERS, UID

SDKS: dict[str, tuple[type[Double], Callable[..., Told]]] = {
    "api.stripe.com": (StripeDouble, test_stripe.by_client),
    "api.mollie.com": (MollieDouble, test_mollie.pay),
    "api.checkout.com": (CheckoutDouble, test_checkout.pay),
}


SPARED = ("--uid", str(UID), "--gid", str(GID))


def paywitness(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "paywitness", *arguments], cwd=TOP, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class Bank:
    """A host that no policy names, with a certificate of its own authority. It says who asked."""

    def __init__(self, address: str) -> None:
        self.authority = make_local_ca(["bank.test"], datetime.now(UTC))
        context = HostCertificates(lambda: self.authority, SystemClock()).context_for("bank.test")
        assert context is not None
        self._context = context
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, 443), family=family)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            client, _ = self._listener.accept()
            try:
                with self._context.wrap_socket(client, server_side=True) as secured:
                    secured.recv(65536)
                    secured.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbank")
            except OSError:
                client.close()

    def asked_by_anybody(self, address: str) -> str:
        """As a client that trusts the bank's authority alone sees it."""
        context = ssl.create_default_context(cadata=self.authority.pem.decode())
        try:
            with (
                socket.create_connection((address, 443), timeout=10) as plain,
                context.wrap_socket(plain, server_hostname="bank.test") as secured,
            ):
                secured.sendall(b"GET / HTTP/1.1\r\nHost: bank.test\r\n\r\n")
                return secured.recv(65536).rpartition(b"\r\n\r\n")[2].decode()
        except OSError as error:
            return type(error).__name__


def pay(house: House) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    for host, (kind, by) in SDKS.items():
        stand = house.stand(kind)
        order = stand.new_order()
        stand.double.befall(order, Fault.LOST)
        told = by(f"https://{host}", order, False)
        seen[host] = {"paid": told.paid, "effects": stand.double.effects(order), "text": told.text}
    return seen


def by_plain_http(host: str, family: int) -> int:
    """A call in the clear, by the provider's own address: what status it got."""
    with socket.socket(family) as client:
        client.settimeout(10)
        client.connect((PROVIDERS[host][family == socket.AF_INET6], 80))
        client.sendall(f"GET /v1/balance HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        return int(client.recv(65536).split(b" ")[1])


def main(home: Path, backend: str) -> dict[str, Any]:
    house = House(home)
    sidecar = house.sidecar
    sidecar.group = GID
    sidecar.environment |= {"PAYWITNESS_UNLISTED": "tunnel"}
    sidecar.options = ("--listen", f"localhost:{sidecar.port}")
    paywitness("redirect", "install", *SPARED, "--to-port", str(sidecar.port), "--backend", backend)
    shown = paywitness("redirect", "show", "--backend", backend)
    try:
        for kind, _ in SDKS.values():
            house.stand(kind)
        policies = str(home / "policies")
        paywitness("ca", "init", "--home", str(home), "--policies", policies)
        bundle = str(home / "ca-bundle.pem")
        os.environ |= {"REQUESTS_CA_BUNDLE": bundle, "SSL_CERT_FILE": bundle}
        stripe.ca_bundle_path = bundle
        bank, bank_v6 = Bank(BANK), Bank(BANK_V6)
        seen = {
            "sdks": pay(house),
            "bank": bank.asked_by_anybody(BANK),
            "bank_v6": bank_v6.asked_by_anybody(BANK_V6),
            "plain": by_plain_http("api.stripe.com", socket.AF_INET),
            "plain_v6": by_plain_http("api.stripe.com", socket.AF_INET6),
            "rules": shown,
        }
    finally:
        house.close()
    seen["refused"] = bank.asked_by_anybody(BANK)
    seen["spared"] = [
        as_user(bank, user=UID, group=0),
        as_user(bank, user=0, group=GID),
        as_user(bank, user=1, group=1),
    ]
    paywitness("redirect", "remove", "--backend", backend)
    seen["unredirected"] = bank.asked_by_anybody(BANK)
    return seen


def as_user(bank: Bank, *, user: int, group: int) -> str:
    """What somebody else sees of the bank."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setresgid(group, group, group)
        os.setresuid(user, user, user)
        os.write(writer, bank.asked_by_anybody(BANK).encode())
        os._exit(0)
    os.waitpid(child, 0)
    return os.read(reader, 100).decode()


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), sys.argv[2])))
