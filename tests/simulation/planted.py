"""Proof of the proof: bugs planted in a copy of the source, one at a time, each to be caught within a few seeds.

`python -m tests.simulation.planted` plays them all and prints how many seeds each took. One that survives means that a
fault or a checker is missing. Every edit must still apply: `test_planted` looks at that with each run of the tests.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import click

TOP = Path(__file__).resolve().parents[2]
SEEDS_MAX = 50
PAYMENTS = 150  # a short world is a rough one: as much goes wrong in it as in a thousand payments
_CAUGHT = re.compile(r"^seed (\d+): (.+)$", re.MULTILINE)
PAID_TWICE = ("one effect", "no re-send in doubt", "no re-send past the window")  # or as good as
UNTRUE = (
    *("no means none, for ever", "succeeded is one effect", "the right amount", "nobody else's answer"),
    "doubt not guessed away",
)


@dataclass(frozen=True)
class Edit:
    path: str
    old: str
    new: str


@dataclass(frozen=True)
class Bug:
    name: str
    what: str
    edits: tuple[Edit, ...]
    breaks: tuple[str, ...] = (*PAID_TWICE, *UNTRUE)  # it is caught when one of these is broken, and by nothing less


def bug(name: str, what: str, path: str, *pairs: str, breaks: tuple[str, ...] = (*PAID_TWICE, *UNTRUE)) -> Bug:
    """A bug in one file: what stands there and what is put in its place, by turns."""
    olds, news = pairs[::2], pairs[1::2]
    return Bug(name, what, tuple(Edit(path, old, new) for old, new in zip(olds, news, strict=True)), breaks)


_ENGINE, _CORE = "proxy/paywitness/engine/", "proxy/paywitness/core/"

BUGS = (
    bug(
        "sent_without_the_journal",
        "a claim that the journal did not confirm is taken for granted",
        _ENGINE + "records.py",
        "            claim = await self._timed_claim(request)\n            if claim.operation is not None and claim",
        "            from paywitness.core.operation import Lease\n"
        "            sending = advance(request.fresh, Event.SEND_RECORDED)\n"
        "            sending = sending.changed(lease=Lease(request.token, self.clock.now() + 30.0))\n"
        "            claim = Claim(Verdict.OWNED, sending, self.clock.now())\n"
        "            if claim.operation is not None and claim",
    ),
    bug(
        "new_key_per_retry",
        "each attempt has a provider key of its own",
        _ENGINE + "keeping.py",
        "(policy.contract.send_as, operation.provider_key)):",
        '(policy.contract.send_as, operation.provider_key and f"{operation.provider_key}-{operation.attempts}")):',
        breaks=("constant key", *PAID_TWICE),
    ),
    bug(
        "doubt_closed_by_a_timer",
        "after a few looks in vain an operation in doubt is failed",
        _ENGINE + "resolver.py",
        "            after = _given_back(after, token)\n            after = after.changed(due_at=due_at, because=",
        "            if after.state is State.UNKNOWN and after.looks >= 4:\n"
        "                after, due_at = after.changed(state=State.FAILED, doubt=frozenset(), released=True), None\n"
        "            after = _given_back(after, token)\n            after = after.changed(due_at=due_at, because=",
    ),
    bug(
        "refusal_closes_the_doubt",
        "a re-send that was refused is taken for the answer of the attempts before it",
        _CORE + "lifecycle.py",
        "    if operation.doubt and not others:\n",
        "    if operation.doubt:\n",
        "    return doubt - {attempt} if event in _OF_ITSELF_ALONE else doubt\n",
        "    return frozenset() if event in _OF_ITSELF_ALONE else doubt\n",
    ),
    bug(
        "garbage_read_as_a_400",
        "bytes that are no HTTP are read as a refusal",
        _CORE + "classify.py",
        "    if evidence.fault in timeouts:\n",
        "    if evidence.fault is WireFault.MALFORMED:\n"
        '        return Classification.of(Reading.VALIDATION_ERROR, "garbage")\n'
        "    if evidence.fault in timeouts:\n",
    ),
    bug(
        "one_miss_is_absent",
        "one look-up that finds nothing proves absence",
        _CORE + "inquiry.py",
        "after.misses >= proof.misses and now - first_at >= proof.lag_s",
        "True",
    ),
    bug(
        "absent_before_it_settled",
        "misses count while a request may still arrive",
        _CORE + "inquiry.py",
        "    return not operation.attempt_under_way and now >= settled_at(operation, settle_s)\n",
        "    return not operation.attempt_under_way\n",
    ),
    bug(
        "lease_without_fencing",
        "the right to send is not looked at before the first byte",
        _ENGINE + "leases.py",
        "        return held is not None and held.token == token and held.until_boot - self._clock.boot() > seconds\n",
        "        return True\n",
        breaks=("no send without a lease", *PAID_TWICE),
    ),
    bug(
        "doubt_forgotten_by_a_resend",
        "a re-send puts only itself in doubt",
        _CORE + "lifecycle.py",
        "        return doubt | {operation.attempts + 1}\n",
        "        return frozenset({operation.attempts + 1})\n",
    ),
    bug(
        "success_overwritten",
        "a later denial overwrites a payment that was made",
        _CORE + "lifecycle.py",
        "        **_each(OUTSIDE_DENIALS, State.SUCCEEDED, IncidentKind.FAILURE_AFTER_SUCCESS),\n"
        "        Event.DENIAL_SEEN: Move(State.SUCCEEDED, IncidentKind.FAILURE_AFTER_SUCCESS),\n"
        "        Event.NO_EFFECT_SEEN: Move(State.SUCCEEDED),\n",
        "        **_each(OUTSIDE_DENIALS, State.FAILED),\n"
        "        Event.DENIAL_SEEN: Move(State.FAILED),\n"
        "        Event.NO_EFFECT_SEEN: Move(State.FAILED),\n",
    ),
    bug(
        "guard_asleep",
        "another key may pay an intent that is open",
        _CORE + "claim.py",
        "    refused: Operation | None = None\n    for holder in holders:\n",
        "    refused: Operation | None = None\n    for holder in ():\n",
    ),
    bug(
        "resend_past_the_window",
        "a re-send is thought safe for ten times as long as the provider keeps the key",
        _CORE + "contract.py",
        "        return self.window_s * WINDOW_SHARE_FOR_RESEND\n",
        "        return self.window_s * 10\n",
    ),
    bug(
        "resend_though_errors_are_not_stored",
        "a lost answer is fetched by a re-send where it may have been an unstored error",
        _CORE + "decide.py",
        "            return False  # the lost answer may have been an error that was not stored, after the effect\n",
        "            return True\n",
    ),
    Bug(
        "resend_without_a_key",
        "a provider that does not dedupe is sent the same payment again",
        (
            Edit(_CORE + "decide.py", "        contract.dedupes\n        and context", "        context"),
            Edit(
                _CORE + "decide.py",
                "    match context.contract.errors_under_key:\n",
                "    if not context.contract.dedupes:\n        return True\n"
                "    match context.contract.errors_under_key:\n",
            ),
            Edit(  # which the right to send is held against once more
                _CORE + "contract.py",
                "        if not self.dedupes or self.window_s is None:\n            return 0.0\n",
                "        if not self.dedupes or self.window_s is None:\n            return 60.0\n",
            ),
        ),
    ),
    bug(
        "foreign_answer_believed",
        "an answer is not held against what was asked for",
        _CORE + "classify.py",
        "    stamp = evaluate(fit.stamp, tree) if fit.stamp is not None else None\n    if stamp is not None and asked",
        "    return True\n    stamp = evaluate(fit.stamp, tree) if fit.stamp is not None else None\n"
        "    if stamp is not None and asked",
    ),
    bug(
        "deadline_says_not_sent",
        "a caller whose time is up is told that nothing was sent",
        _ENGINE + "engine.py",
        "errand.tell(unknown(errand.operation, errand.shape, sent=errand.has_sent, detail=_DEADLINE_PASSED))",
        'errand.tell(problem(Problem.NOT_SENT, "", shape=errand.shape, provider=errand.policy.provider))',
    ),
    bug(
        "answered_before_it_is_recorded",
        "not sent is told though the journal did not take it",
        _ENGINE + "settling.py",
        '            raise JournalUnavailable("the operation is not ended in the journal")\n',
        "            after = after.changed(state=State.FAILED, released=True)\n",
    ),
    bug(
        "retries_without_a_budget",
        "a retry asks nobody",
        _ENGINE + "allowance.py",
        "            errand.grant, errand.limited = found, None\n            return True\n        errand.limited",
        "            errand.grant, errand.limited = found, None\n        return True\n        errand.limited",
        breaks=("budget",),
    ),
    bug(
        "event_dropped",
        "an event that the sink did not take is not offered again",
        _ENGINE + "outbox.py",
        "            if response is not None and 200 <= response.status_code < 300:\n                return True\n",
        "            if True:\n                return True\n",
        breaks=("every event delivered",),
    ),
    bug(
        "another_payload_replayed",
        "a key that comes with another payload is answered as the first was",
        _CORE + "claim.py",
        "    if not equal:\n        return Judgement(Verdict.MISMATCH, existing)\n",
        "",
    ),
    bug(
        "gateway_timeout_is_a_failure",
        "a gateway's 504 is read as without effect",
        _CORE + "classify.py",
        "        return Classification.of(Reading.PROVIDER_TIMEOUT, name, lost=lost)\n",
        "        return Classification.of(Reading.VALIDATION_ERROR, name)\n",
    ),
    bug(
        "expired_lease_was_never_sent",
        "an operation whose holder died while sending is taken for not sent",
        _CORE + "claim.py",
        "    if never_sent or operation.attempt_under_way:\n"
        "        operation = advance(operation, Event.LEASE_EXPIRED)\n",
        "    if operation.state is State.SENDING:\n"
        "        never_sent = True\n"
        "        operation = operation.changed(state=State.FAILED, attempt_under_way=False)\n"
        "    elif never_sent or operation.attempt_under_way:\n"
        "        operation = advance(operation, Event.LEASE_EXPIRED)\n",
    ),
    Bug(
        "webhook_applied_twice",
        "an event is applied each time that it comes, and what it says is told again",
        (
            Edit(
                _ENGINE + "webhooks.py",
                "            bound_to = _bound_to(provider, account, notice.event_id)\n            sealed",
                '            notice = replace(notice, event_id=f"{notice.event_id} at {now}")\n'
                "            bound_to = _bound_to(provider, account, notice.event_id)\n            sealed",
            ),
            Edit(
                _ENGINE + "outside.py",
                "            if _says_nothing_new(current, after) and finding.found is Found.HIT:\n",
                "            if _says_nothing_new(current, after) and source is not Source.WEBHOOK:\n",
            ),
            Edit(
                _ENGINE + "outside.py",
                "                told=told_by(current, after),\n                actor=actor,\n",
                "                told=told_by(None if source is Source.WEBHOOK else current, after),\n"
                "                actor=actor,\n",
            ),
        ),
        breaks=("an end is told once",),
    ),
    bug(
        "nothing_is_ever_sent",
        "every request is taken for one that cannot be written, and its caller is told so",
        _ENGINE + "keeping.py",
        "(policy.contract.send_as, operation.provider_key)):",
        '(policy.contract.send_as, operation.provider_key)):\n        raise ValueError("no room")',
        breaks=("somebody is paid",),
    ),
    bug(
        "misses_at_once_are_absence",
        "misses prove absence however fast they follow each other",
        _CORE + "inquiry.py",
        " and now - first_at >= proof.lag_s",
        "",
        "        soonest = now + max(proof.lag_s, 0.05) * max(1.0, jitter) / max(1, proof.misses - 1)\n",
        "        soonest = now + 0.05\n",
    ),
    bug(
        "tombstone_ignored",
        "a key whose operation was retired starts anew",
        "proxy/paywitness/journal/claim_plan.py",
        "    if existing is None and (gone := shelf.tombstone(request.fresh.key)) is not None:\n",
        "    if existing is None and (gone := None) is not None:\n",
        breaks=("an old key is not executed", *PAID_TWICE),
    ),
    bug(
        "the_dead_left_lying",
        "nobody acts upon leases that ran out",
        _ENGINE + "recovery.py",
        "                    self._tell(await self.journal.expire_leases())\n",
        "                    pass\n",
        "            found = await self.journal.expire_leases(all_of_earlier_holders=only_holder)\n",
        "            found: tuple[Operation, ...] = ()\n",
        breaks=("nothing stuck",),
    ),
    bug(
        "doubt_released",
        "the key of an operation in doubt may start anew",
        _CORE + "claim.py",
        "    if existing.state is not State.FAILED or existing.incident is not None or existing.cancel_sent:\n",
        "    if existing.state is State.UNKNOWN and existing.lease is None:\n        return True\n"
        "    if existing.state is not State.FAILED or existing.incident is not None or existing.cancel_sent:\n",
    ),
    Bug(
        "fallback_from_doubt",
        "a payment whose answer was lost is made elsewhere",
        (
            Edit(
                _CORE + "decide.py",
                '    Rule("in_doubt_same_key_is_safe", _resend_now, Action.RETRY_SAME_OPERATION),\n',
                '    Rule("elsewhere", lambda c: _in_doubt(c) and bool(c.fallback_to), Action.FALLBACK_NEW_ATTEMPT),\n'
                '    Rule("in_doubt_same_key_is_safe", _resend_now, Action.RETRY_SAME_OPERATION),\n',
            ),
            Edit(
                _ENGINE + "context.py",
                "    Reading.NETWORK_CONNECT_FAILURE: FallbackCause.NOT_SENT,\n",
                "    Reading.NETWORK_CONNECT_FAILURE: FallbackCause.NOT_SENT,\n"
                "    Reading.NETWORK_READ_TIMEOUT: FallbackCause.NOT_SENT,\n",
            ),
            Edit(
                _ENGINE + "fallback.py",
                "        ended = advance(first, Event.GIVEN_UP).changed(",
                "        from paywitness.core.operation import State\n"
                "        if first.doubt:\n"
                "            first = first.changed(state=State.BACKOFF, doubt=frozenset())\n"
                "        ended = advance(first, Event.GIVEN_UP).changed(",
            ),
            Edit(_ENGINE + "fallback.py", " not in book.providers or first.doubt:", " not in book.providers:"),
        ),
    ),
    bug(
        "a_clock_that_stops_in_suspension",
        "leases are counted on a clock that does not count suspension",
        _ENGINE + "leases.py",
        "held.until_boot - self._clock.boot() > seconds",
        "held.until_boot - self._clock.boot() + getattr(self._clock, 'suspended_s', 0.0) > seconds",
        breaks=("no send without a lease", *PAID_TWICE),
    ),
)


def applied(planted: Bug, top: Path) -> None:
    """Plant it in the tree at `top`. Raises ValueError where an edit fits nowhere, or in two places."""
    for edit in planted.edits:
        path = top / edit.path
        text = path.read_text()
        if text.count(edit.old) != 1:
            raise ValueError(f"{planted.name}: found {text.count(edit.old)} places in {edit.path} for {edit.old!r}")
        path.write_text(text.replace(edit.old, edit.new))


def hunted(planted: Bug, payments: int, seeds: int, after: int = 0) -> tuple[int, str] | None:
    """How many seeds after `after` it took to catch it, and the promise that it broke. None: it survived."""
    with tempfile.TemporaryDirectory() as directory:
        top = Path(directory)
        shutil.copytree(TOP / "proxy", top / "proxy", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copytree(TOP / "tests" / "simulation", top / "tests" / "simulation")
        (top / "tests" / "__init__.py").touch()  # no other package of that name
        applied(planted, top)
        command = [sys.executable, "-m", "tests.simulation", *_seeds(after, seeds), "--payments", str(payments)]
        until = [word for promise in planted.breaks for word in ("--until", promise)]
        environment = {**os.environ, "PYTHONPATH": str(top), "PYTHONDONTWRITEBYTECODE": "1"}
        played = subprocess.run(
            [*command, "--brief", *until],
            cwd=top,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if played.returncode not in {0, 1} or "Traceback" in played.stderr:
            raise RuntimeError(f"{planted.name}: {played.stderr[-2000:]}")
        for found in _CAUGHT.finditer(played.stdout):
            caught = [promise for promise in found.group(2).split("; ") if promise in planted.breaks]
            if caught:
                return int(found.group(1)) - after, caught[0]
        return None


def _seeds(after: int, count: int) -> tuple[str, str]:
    return "--seeds", f"{after + 1}-{after + count}"


@click.command(help=__doc__)
@click.option("--payments", default=PAYMENTS, show_default=True, help="Orders in each world.")
@click.option("--seeds", default=SEEDS_MAX, show_default=True, help="So many are tried at most.")
@click.option("--after", default=0, show_default=True, help="They come after this one.")
@click.option("--processes", default=1, show_default=True, help="Bugs hunted side by side.")
@click.argument("names", nargs=-1)
def main(payments: int, seeds: int, after: int, processes: int, names: tuple[str, ...]) -> None:
    chosen = [planted for planted in BUGS if not names or planted.name in names]
    survived = 0
    click.echo("| bug | what it does | caught by seed, as |\n|---|---|---|")
    with ThreadPoolExecutor(processes) as hunters:
        hunts = hunters.map(lambda one: hunted(one, payments, seeds, after), chosen)
        for planted, caught in zip(chosen, hunts, strict=True):
            survived += caught is None
            told = f"{caught[0]}: {caught[1]}" if caught is not None else "SURVIVED"
            click.echo(f"| {planted.name} | {planted.what} | {told} |")
    sys.exit(1 if survived else 0)


if __name__ == "__main__":
    main()
