"""A provider's own port, for an SDK that cannot take a path prefix: opened, moved and closed with its policy."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.e2e.conftest import Provider
from tests.e2e.sidecar import Sidecar, ask, listens, wait_until
from tests.ports import free_port

pytestmark = pytest.mark.slow
HEADERS = {"Content-Type": "application/json", "Authorization": "Bearer test"}


def charge(url: str, key: str) -> tuple[int, str | None]:
    body = {"amount": 500, "currency": "EUR", "metadata": {"order_id": key}}
    answer = ask(f"{url}/v1/charges", body, {**HEADERS, "Idempotency-Key": key})
    return answer.status_code, answer.headers.get("Paywitness-Replayed")


def test_a_port_is_one_providers_and_follows_its_policy(
    sandbox: Provider, make_sidecar: Callable[..., Sidecar]
) -> None:
    first, second = free_port(), free_port()
    sidecar = make_sidecar(sandbox.url, ("provider: acme ", f"listen: 127.0.0.1:{first}\nprovider: acme "))
    sidecar.start()
    wait_until(lambda: listens(first), "the port opening")  # after the main one, which a policy must not take from us
    assert charge(f"http://127.0.0.1:{first}", "a") == (200, None)
    assert charge(sidecar.url, "a") == (200, "true")  # the same operation by its path on the main port
    policy = sidecar.home / "policies" / "acme.yaml"
    policy.write_text(policy.read_text().replace(f"127.0.0.1:{first}", f"127.0.0.1:{second}"))
    wait_until(lambda: listens(second) and not listens(first), "the port moving")
    assert charge(f"http://127.0.0.1:{second}", "b") == (200, None)
    policy.write_text(policy.read_text().replace(f"listen: 127.0.0.1:{second}\n", ""))
    wait_until(lambda: not listens(second), "the port closing")
    assert charge(sidecar.url, "b") == (200, "true")
    assert len(sandbox.ledger()) == 2


def test_a_port_that_is_taken_stops_nobody_and_is_opened_when_it_is_free(
    sandbox: Provider, make_sidecar: Callable[..., Sidecar]
) -> None:
    holder = make_sidecar(sandbox.url).start()
    taken = f"listen: 127.0.0.1:{holder.port}\nprovider: acme "
    sidecar = make_sidecar(sandbox.url, ("provider: acme ", taken)).start()
    assert charge(sidecar.url, "a") == (200, None)
    wait_until(lambda: "cannot listen" in sidecar.log, "its being told")
    assert holder.stop() == 0
    wait_until(lambda: listens(holder.port), "the port being opened")
    assert charge(f"http://127.0.0.1:{holder.port}", "a") == (200, "true")
    assert sidecar.log.count("cannot listen") == 1
