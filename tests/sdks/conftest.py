"""Unmodified SDKs of providers as clients: through the proxy, against a double that keeps a ledger.

How to add one, `acme` say, of which a policy is shipped:

1. `acme_double.py`: a subclass of `double.Double` that speaks the provider's wire format (see there for what it says).
   It reads its provider's documents, not our policy.
2. `test_acme.py`:

        pytestmark = pytest.mark.slow

        @pytest.fixture
        def stand(house: House) -> Stand:
            return house.stand(AcmeDouble)

        def pay(url: str, order: str, declined: bool = False) -> Told:
            client = acme.Client("key", base_url=url, retries=0)
            try:
                payment = client.payments.create(amount=1099, currency="EUR", order=order, card=CARDS[declined])
            except acme.Error as error:                  # the SDK's own base class; what else it raises is a failure
                return Told(type(error).__name__, (error.status, error.code), str(error))
            return Told("paid", (payment.status, payment.amount))

        VERDICTS = {**STORED, BROKEN_AFTER: Verdict.PAID}       # it can be asked: a 500 is not the end

        @pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
        def test_one_effect_and_no_surprise(stand: Stand, scenario: Scenario) -> None:
            play(stand, scenario, VERDICTS[scenario], pay)

        def test_a_lost_answer_of_ours_is_asked_for_again(stand: Stand) -> None:
            repeat(stand, pay, by_itself=False)

   `play` runs the scenario through us, and where it is meaningful without us too, and compares what the SDK's user is
   told and what the ledger holds. `repeat` loses our own answer. Then what is this SDK's own: its retries, the words
   its exception shows for a key conflict (`NOTHING_WAS_SENT`) and for an unknown outcome.
3. The SDK goes into the `dev` extra of pyproject.toml; if it has no types, to mypy's `ignore_missing_imports` too.

There is one sidecar process for each worker, whatever tests it is given, with a policy file for each provider that was
asked for: `extends: paywitness:acme` and nothing but the address, a port of its own, short waits and roomy limits.
Orders are new in every test (`stand.new_order()`), so nothing need be cleaned up. What a policy takes from the
environment is given in ENVIRONMENT. An SDK that drops a path prefix is given `url=stand.own_port`.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.sidecar import Sidecar, listens, wait_until
from tests.ports import free_port
from tests.sdks.double import Double, Server
from tests.sdks.line import Line
from tests.sdks.scenarios import Stand

ENVIRONMENT = {"PAYPAL_CLIENT_ID": "client", "PAYPAL_CLIENT_SECRET": "secret"}
IN_FORCE_S = 60.0  # a process starts in one; a machine that is short of time takes longer

# What a shop would say of its own set-up. A double answers at once, so short waits lose nothing; an answer that is late
# all the same is a doubt, and that is settled too.
POLICY = """
extends: paywitness:{provider}
upstream: {upstream}
listen: 127.0.0.1:{port}
timeouts: {{connect: 2s, first_byte: 2s, deadline: 6s}}
retry:
  default: {{base: 20ms, cap: 100ms}}
  rate_limited: {{base: 20ms, cap: 100ms}}
circuit: {{minimum: 10000}}
budget:
  provider: {{floor: 10000}}
  operation: {{floor: 10000}}
  account: {{floor: 10000}}
  failure_class: {{floor: 10000}}
  per_intent: 20
"""


class House:
    """One sidecar, and what stands behind it as tests ask for it."""

    def __init__(self, home: Path) -> None:
        self.sidecar = Sidecar(home, "http://127.0.0.1:9", environment=ENVIRONMENT)
        self._stands: dict[str, Stand] = {}
        self._stop: list[Server | Line] = []

    def stand(self, kind: type[Double]) -> Stand:
        """The same one whenever it is asked for."""
        if kind.provider not in self._stands:
            self._stands[kind.provider] = self._put_up(kind())
        return self._stands[kind.provider]

    def _put_up(self, double: Double) -> Stand:
        server = Server(double, free_port())
        self._stop.append(server)
        own_port = free_port()
        policy = self.sidecar.home / "policies" / f"{double.provider}.yaml"
        policy.write_text(POLICY.format(provider=double.provider, upstream=server.url, port=own_port))
        if self.sidecar.process is None:
            self.sidecar.start(wait=False)
        else:
            self.sidecar.send(signal.SIGHUP)
        wait_until(lambda: self.sidecar.ended or listens(own_port), "the policy's being in force", IN_FORCE_S)
        assert not self.sidecar.ended, self.sidecar.log
        door, own_door = free_port(), free_port()
        line = Line({door: self.sidecar.port, own_door: own_port})
        self._stop.append(line)
        return Stand(
            double=double,
            line=line,
            direct=server.url,
            through=f"http://127.0.0.1:{door}/{double.provider}",
            own_port=f"http://127.0.0.1:{own_door}",
        )

    def mistakes(self) -> list[Exception]:
        """What doubles did not expect since it was last asked."""
        found: list[Exception] = []
        for stand in self._stands.values():
            found, stand.double.mistakes = found + stand.double.mistakes, []
        return found

    def close(self) -> None:
        self.sidecar.kill()
        for thing in self._stop:
            thing.stop()


@pytest.fixture(scope="session")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    house = House(tmp_path_factory.mktemp("house"))
    yield house
    house.close()


@pytest.fixture(autouse=True)
def _no_mistakes(house: House) -> Iterator[None]:
    yield
    assert house.mistakes() == []
