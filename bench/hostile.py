"""What a paying caller feels of somebody hostile: its p99 beside hostile gzip, wide bodies, a provider that answers so,
and strangers' webhooks; each over its quiet p99 of the same round.

Every attacker sends its next body a pause after its last answer. Without a pause it would show how many requests a
second one machine can send, which is load and no attack.
"""

from __future__ import annotations

import contextlib
import gzip
import http.client
import statistics
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from bench.load import Job
from bench.processes import BenchError, LoadProcess, Started, free_port, policy_for, start_paywitness, start_provider
from bench.rounds import PATH_OF_PAYWITNESS, scratch_folder

QUIET = "quiet"
AIM = 2.0
ROUNDS, _WARM_S, _WINDOW_S, _CALLERS = 7, 0.5, 3.0, 4
_PAYER_PAUSE_S = 0.01
_ATTACKERS = 6
_ADYEN_KEY = {"ADYEN_HMAC_KEY": "ab" * 32}

_NESTED = b'{"amount":100,"currency":"eur","x":[' + b"[]," * 5_300_000 + b"0]}"
GZIP = gzip.compress(_NESTED, 9)  # 16 KB of 16 MB
_WIDE = b'{"amount":100,"currency":"eur"' + b"".join(b',"k%05d":1' % number for number in range(80_000)) + b"}"
_WITHIN = b'{"amount":100,"currency":"eur"' + b"".join(b',"k%05d":1' % number for number in range(19_000)) + b"}"
_WEBHOOK = b'{"notificationItems":[' + b"[]," * 349_000 + b"0]}"  # 1 MB, as it was once taken
_WEBHOOK_WITHIN = b'{"notificationItems":[' + b"[]," * 2_400 + b"0]}"  # just what is still parsed


@dataclass(frozen=True, slots=True)
class Attack:
    name: str
    port: int
    path: str
    body: bytes
    headers: dict[str, str]
    pause_s: float = 0.1
    aimed_at: bool = True  # False: no attack but a load, for comparison


@dataclass(slots=True)
class Measured:
    p99_ms: dict[str, list[float]] = field(default_factory=dict)  # by attack, a round each
    answers: dict[str, dict[int, int]] = field(default_factory=dict)  # what the attackers were told

    loads: set[str] = field(default_factory=set)  # the names of those that are no attack

    def ratio(self, name: str) -> float:
        return statistics.median(
            hurt / quiet for hurt, quiet in zip(self.p99_ms[name], self.p99_ms[QUIET], strict=True)
        )


def measure(top: Path, say: Callable[[str], None], rounds: int = ROUNDS) -> Measured:
    measured = Measured()
    with ExitStack() as stack:
        scratch = scratch_folder(stack, top)
        provider = start_provider(stack, top, scratch)
        rogue = stack.enter_context(_rogue_provider())
        webhooks = free_port()
        ours = policy_for(top, provider)
        policies = [
            ours,
            ours.replace("provider: acme", "provider: rogue").replace(f":{provider.port}", f":{rogue}"),
            f"extends: paywitness:adyen\nupstream: http://127.0.0.1:{provider.port}\n",
        ]
        policies[1] = "\n".join(line for line in policies[1].splitlines() if not line.startswith("hosts:")) + "\n"
        options = ["--webhooks", f"127.0.0.1:{webhooks}"]
        paywitness = start_paywitness(
            stack, top, scratch, provider, policies=policies, options=options, environment=_ADYEN_KEY
        )
        load = LoadProcess(stack, top)
        attacks = _attacks(paywitness, webhooks)
        for number in range(rounds):
            say(f"hostile bodies: round {number + 1} of {rounds}")
            measured.p99_ms.setdefault(QUIET, []).append(_p99_ms(load, paywitness))
            measured.loads.update(attack.name for attack in attacks if not attack.aimed_at)
            for attack in attacks[number % len(attacks) :] + attacks[: number % len(attacks)]:
                with _attacked_by(attack, measured.answers.setdefault(attack.name, {})):
                    measured.p99_ms.setdefault(attack.name, []).append(_p99_ms(load, paywitness))
    return measured


def lines(measured: Measured) -> Iterator[str]:
    quiet_ms = statistics.median(measured.p99_ms[QUIET])
    yield (
        f"Hostile bodies ({_CALLERS} paying callers beside {_ATTACKERS} attackers; "
        f"medians of {len(measured.p99_ms[QUIET])} rounds; quiet p99 {quiet_ms:.1f} ms; aim: below x {AIM:.0f})"
    )
    for name, p99_ms in measured.p99_ms.items():
        if name != QUIET:
            told = ", ".join(f"{count} x {status}" for status, count in sorted(measured.answers[name].items()))
            aimed_at = name not in measured.loads
            met = "" if not aimed_at else ", met" if measured.ratio(name) < AIM else ", missed"
            p99 = f"p99 {statistics.median(p99_ms):6.1f} ms (x {measured.ratio(name):.2f}{met})"
            yield f"  {name:<46} {p99}; told {told}"


def _attacks(paywitness: Started, webhooks: int) -> list[Attack]:
    json_headers = {"Content-Type": "application/json", "Authorization": "Bearer hostile"}
    packed = {**json_headers, "Content-Encoding": "gzip"}
    adyen = "/paywitness/webhooks/adyen"
    rogue = PATH_OF_PAYWITNESS.replace("/acme/", "/rogue/", 1)
    port = paywitness.port
    return [
        Attack("16 KB of gzip, 16 MB of JSON in it", port, PATH_OF_PAYWITNESS, GZIP, packed),
        Attack("load: 1 MB of JSON, 80,000 values", port, PATH_OF_PAYWITNESS, _WIDE, json_headers, aimed_at=False),
        Attack("36 webhooks of 1 MB, unsigned", webhooks, adyen, _WEBHOOK, json_headers, pause_s=0.5),
        Attack("webhooks just within the bounds, unsigned", webhooks, adyen, _WEBHOOK_WITHIN, json_headers),
        Attack(
            "a provider that answers 16 KB of such gzip", port, rogue, b'{"amount":1,"currency":"eur"}', json_headers
        ),
        Attack("load: requests with 19,000 values", port, PATH_OF_PAYWITNESS, _WITHIN, json_headers, aimed_at=False),
    ]


def _p99_ms(load: LoadProcess, paywitness: Started) -> float:
    job = Job(paywitness.port, PATH_OF_PAYWITNESS, paywitness.pid, _CALLERS, _WARM_S, _WINDOW_S, pause_s=_PAYER_PAUSE_S)
    result = load.drive(job)
    if result.failed or not result.calls:
        raise BenchError(f"{result.failed} paying calls failed beside an attack\n{result.first_failed}".rstrip())
    return 1e3 * result.p99_s


@contextmanager
def _attacked_by(attack: Attack, answers: dict[int, int]) -> Iterator[None]:
    over = threading.Event()
    threads = [threading.Thread(target=_send, args=(attack, answers, over)) for _ in range(_ATTACKERS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def _send(attack: Attack, answers: dict[int, int], over: threading.Event) -> None:
    while not over.wait(attack.pause_s):
        status = 0  # no answer
        caller = http.client.HTTPConnection("127.0.0.1", attack.port, timeout=30)
        try:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # refused while it was being sent
                caller.request("POST", attack.path, attack.body, attack.headers)
            status = caller.getresponse().status
        except (OSError, http.client.HTTPException):
            pass
        finally:
            caller.close()
        answers[status] = answers.get(status, 0) + 1


@contextmanager
def _rogue_provider() -> Iterator[int]:
    """Answers everything with hostile gzip."""

    class Rogue(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(200)
            for name, value in (("Content-Type", "application/json"), ("Content-Encoding", "gzip")):
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(GZIP)))
            self.end_headers()
            self.wfile.write(GZIP)

        do_GET = do_POST  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Rogue) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()
