"""Fallback from what inquiries show to be absent, and from refusals that the policy marks; what the timeline keeps.

Absence is a cause only for the call that made the operation, while it waits. Nobody is charged for later.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from paywitness.clock import SystemClock
from paywitness.core.announcements import cloud_events
from paywitness.core.errors import JournalUnavailable
from paywitness.core.fallback import FallbackCause, FallbackChoice, RouteVerdict
from paywitness.core.operation import Operation, Outcome, State
from paywitness.core.policy import ResolutionRules
from paywitness.core.reply import Reply
from paywitness.core.result import ResultClass
from paywitness.engine.policy_reload import reload_event
from paywitness.engine.policy_start import store_revisions
from paywitness.journal.base import Journal, OperationQuery
from paywitness.policy.book import PolicyBook, load_content
from paywitness.tasks import Tasks
from paywitness_sandbox.server import Sandbox, SandboxOptions
from tests.engine.calls.test_fallback import TwoRoutes, policy_text
from tests.engine.conftest import close
from tests.engine.resolution.test_resolver import LEASE_S, QUICK, SOON
from tests.engine.storm import WITHOUT_KEYS
from tests.engine.world import header, make_world, outcome, sooner
from tests.journal.memory import MemoryJournal

ON_ABSENT = "{to: acme_eu, when: [absent]}"
WAITS = ("deadline: 20s", "deadline: 60s")
REFUSED = (
    "classify:\n",
    "classify:\n  - {status: 401, as: authentication_error, fallback: true}\n",
)


@asynccontextmanager
async def routes_with(
    fallback: str,
    *edits: tuple[str, str],
    journal: Journal | None = None,
    resolves: bool = True,
    resolve: ResolutionRules = SOON,
    eu: str = "same_credentials_as: acme",
) -> AsyncIterator[TwoRoutes]:
    """Two routes of one API, without keys, and a resolver that looks soon."""
    async with Sandbox(SandboxOptions(hang_s=5.0)) as first, Sandbox(SandboxOptions()) as second:
        journal = journal if journal is not None else MemoryJournal(clock=SystemClock())
        world = await make_world(first, lease_s=LEASE_S, journal=journal)
        first.set_contract("none")
        second.set_contract("none")
        elsewhere = ("\nunmatched: forward", f"\nfallback: [{fallback}]\nunmatched: forward")
        mirror = ("\nunmatched: forward", f"\n{eu}\nheaders: {{Sandbox-Fault: '-'}}\nunmatched: forward")
        texts = (
            policy_text("acme", first.url, *QUICK, *WITHOUT_KEYS, elsewhere, *edits),
            policy_text("acme_eu", second.url, *QUICK, *WITHOUT_KEYS, mirror),
        )
        book = sooner(PolicyBook.of([load_content(text.encode(), "test.yaml") for text in texts]), resolve)
        await store_revisions(journal, book)
        world.engine.telemetry.emit(reload_event(book))
        world.engine.policies.book = book
        background = Tasks()
        background.start(world.leases.keep_renewing(), "leases")
        if resolves:
            background.start(world.parts.resolver.keep_resolving(), "resolver")
        try:
            yield TwoRoutes(first, second, world)
        finally:
            await background.stop()
            await close(world)


async def pair_of(routes: TwoRoutes) -> tuple[Operation, Operation]:
    """The operation and the one that stands for it."""
    [first] = await routes.world.journal.find_operations(OperationQuery(provider="acme"))
    [second] = await routes.world.journal.find_operations(OperationQuery(provider="acme_eu"))
    assert (first.fallback_to, second.fallback_of) == (second.id, first.id)
    return first, second


async def choice_of(routes: TwoRoutes, provider: str = "acme") -> FallbackChoice:
    """What the timeline keeps of the routes that were considered."""
    [first] = await routes.world.journal.find_operations(OperationQuery(provider=provider))
    [choice] = [entry.fallback for entry in await routes.world.journal.history(first.id) if entry.fallback is not None]
    return choice


async def charge(routes: TwoRoutes, fault: str, **options: Any) -> Reply:
    """A call that meets this fault at the first route. The policy of the other asks the sandbox for none."""
    return await routes.world.charge(fault=fault, **options)


def verdicts(choice: FallbackChoice) -> dict[str, RouteVerdict]:
    return {candidate.to: candidate.verdict for candidate in choice.candidates}


class TestAbsent:
    @pytest.mark.parametrize("several", [False, True])
    async def test_what_is_shown_absent_is_paid_elsewhere_while_its_caller_waits(
        self, stored_journal: Journal, *, several: bool
    ) -> None:
        async with routes_with(ON_ABSENT, journal=stored_journal) as routes:
            calls = [charge(routes, "reset_before_commit", timeout_s=15)]
            calls += [routes.world.charge(timeout_s=15)] if several else []  # its repeat, meanwhile
            replies = await asyncio.gather(*calls)
            for reply in replies:
                assert (reply.status_code, outcome(reply)) == (200, "succeeded")
                assert header(reply, "Paywitness-Provider") == "acme_eu"
            assert routes.effects() == (0, 1)
            first, second = await pair_of(routes)
            assert (first.state, first.outcome, first.doubt, first.key_released) == (
                State.FAILED,
                Outcome.ABSENT,
                frozenset(),
                False,
            )
            assert (second.fallback_from, second.fallback_reason) == ("acme", "absent")
            choice = await choice_of(routes)
            assert (choice.cause, choice.attempts, choice.revision) == (FallbackCause.ABSENT, 1, first.revision)
            assert verdicts(choice) == {"acme_eu": RouteVerdict.TAKEN}
            again = await routes.world.charge()
            assert (again.body, routes.effects()) == (replies[0].body, (0, 1))

    async def test_its_end_and_the_start_of_the_other_are_one_step(self) -> None:
        async with routes_with(ON_ABSENT) as routes:
            await charge(routes, "reset_before_commit", timeout_s=15)
            first, second = await pair_of(routes)
            *_, ended = await routes.world.journal.history(first.id)
            started, *_ = await routes.world.journal.history(second.id)
            assert (ended.at, ended.state, ended.events) == (started.at, State.FAILED, ("inquiry_confirmed_absent",))
            assert ended.finding is not None
            told = [event for entry in [ended] for event in cloud_events(first, entry)]
            assert [event["data"]["words"] for event in told] == [["resolved", "fallback"]]  # its end is the other's
            assert told[0]["data"]["fallback"] == {
                "from": "acme",
                "from_operation": first.id,
                "to": "acme_eu",
                "to_operation": second.id,
                "reason": second.fallback_reason,
            }

    async def test_nobody_is_charged_for_once_the_caller_has_left(self) -> None:
        async with routes_with(ON_ABSENT) as routes:
            lost = await charge(routes, "reset_before_commit", timeout_s=0.3)
            assert lost.status_code == 504
            found = await self._ended(routes, header(lost, "Paywitness-Operation"))
            assert (found.outcome, found.fallback_to, found.key_released) == (Outcome.ABSENT, None, True)
            assert routes.effects() == (0, 0)
            assert not routes.second.arrivals.arrivals

    async def test_a_caller_that_hangs_up_meanwhile_pays_nowhere(self) -> None:
        async with routes_with(ON_ABSENT) as routes:
            mono, leaves_mono = routes.world.clock.mono, routes.world.clock.mono() + 0.6
            gone = {"timeout_s": 15, "still_there": lambda: mono() < leaves_mono}
            reply = await charge(routes, "reset_before_commit", **gone)
            found = await self._ended(routes, header(reply, "Paywitness-Operation"))
            assert (found.outcome, found.fallback_to) == (Outcome.ABSENT, None)
            assert not routes.second.arrivals.arrivals

    async def test_a_repeat_that_waits_alone_pays_nowhere(self) -> None:
        """It did not make the operation. It is told that it may try again, and that is its own decision."""
        async with routes_with(ON_ABSENT) as routes:
            await charge(routes, "reset_before_commit", timeout_s=0.3)
            again = await routes.world.charge(timeout_s=15)
            assert (again.status_code, outcome(again)) == (503, "absent")
            assert not routes.second.arrivals.arrivals

    async def test_one_miss_is_no_absence(self) -> None:
        slow = replace(SOON, schedule_s=(0.1, 60.0, 70.0), settle_s=30.0)
        async with routes_with(ON_ABSENT, resolve=slow) as routes:
            lost = await charge(routes, "reset_before_commit", timeout_s=1.5)
            assert (lost.status_code, outcome(lost)) == (504, "unknown")
            assert not routes.second.arrivals.arrivals

    async def test_what_turns_out_to_be_paid_is_not_paid_elsewhere(self) -> None:
        async with routes_with(ON_ABSENT) as routes:
            reply = await charge(routes, "drop_after_commit", timeout_s=15)
            assert (reply.status_code, header(reply, "Paywitness-Provider")) == (200, "acme")
            assert routes.effects() == (1, 0)

    async def test_a_policy_that_does_not_list_it_ends_it(self) -> None:
        async with routes_with("{to: acme_eu, when: [not_sent]}") as routes:
            reply = await charge(routes, "reset_before_commit", timeout_s=15)
            assert (reply.status_code, outcome(reply)) == (503, "absent")
            assert not routes.second.arrivals.arrivals

    async def test_without_a_route_that_can_be_taken_it_ends_and_the_timeline_says_why(self) -> None:
        own = "credentials: {header: {Authorization: env:EU_AUTHORIZATION}}"
        async with routes_with(ON_ABSENT, eu=own) as routes:
            reply = await charge(routes, "reset_before_commit", timeout_s=15)
            assert (reply.status_code, outcome(reply)) == (503, "absent")
            [first] = await routes.world.journal.find_operations(OperationQuery(provider="acme"))
            assert (first.key_released, first.fallback_to) == (True, None)
            choice = await choice_of(routes)
            assert verdicts(choice) == {"acme_eu": RouteVerdict.CREDENTIALS_MISSING}
            assert choice.candidates[0].detail == "EU_AUTHORIZATION"

    async def test_another_sidecar_that_finds_it_absent_leaves_it_to_the_caller_for_a_moment(self) -> None:
        """The resolver that asks need not be that of the sidecar at which the caller waits."""
        journal = MemoryJournal(clock=SystemClock())
        async with routes_with(ON_ABSENT, journal=journal, resolves=False) as routes:
            routes.world.parts.external_evidence.waiters.resolver_running = True
            other = await make_world(routes.first, lease_s=LEASE_S, journal=journal)
            other.engine.policies.book = routes.world.engine.book
            background = Tasks()
            background.start(other.parts.resolver.keep_resolving(), "resolver")
            try:
                reply = await charge(routes, "reset_before_commit", timeout_s=15)
            finally:
                await background.stop()
                await close(other)
            assert (reply.status_code, header(reply, "Paywitness-Provider")) == (200, "acme_eu")
            assert routes.effects() == (0, 1)

    async def test_a_journal_that_does_not_take_it_leaves_it_in_doubt(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with routes_with(ON_ABSENT) as routes:

            async def refuse(*_: object) -> None:
                raise JournalUnavailable("not now")

            monkeypatch.setattr(routes.world.journal, "fall_back", refuse)
            reply = await charge(routes, "reset_before_commit", timeout_s=15)
            assert (reply.status_code, outcome(reply)) == (503, "absent")  # the resolver has ended it
            assert not routes.second.arrivals.arrivals

    async def _ended(self, routes: TwoRoutes, operation_id: str | None) -> Operation:
        while True:
            found = await routes.world.journal.read(operation_id or "")
            assert found is not None
            if found.state.ended:
                return found
            await asyncio.sleep(0.02)


class TestRejected:
    async def test_a_refusal_that_the_policy_marks_is_paid_elsewhere(self, stored_journal: Journal) -> None:
        async with routes_with("{to: acme_eu, when: [rejected]}", REFUSED, journal=stored_journal) as routes:
            reply = await charge(routes, "unauthorized")
            assert (reply.status_code, header(reply, "Paywitness-Provider")) == (200, "acme_eu")
            assert routes.effects() == (0, 1)
            first, second = await pair_of(routes)
            assert (first.result_class, first.attempts) == (ResultClass.AUTHENTICATION_ERROR, 1)
            assert (first.because, second.fallback_reason) == ("rejected_pay_elsewhere", "authentication_error")
            *_, ended = await routes.world.journal.history(first.id)
            [told] = cloud_events(first, ended)
            assert (told["type"], told["data"]["fallback"]["reason"]) == (
                "paywitness.operation.fallback",
                "authentication_error",
            )
            again = await routes.world.charge()
            assert (again.body, routes.effects()) == (reply.body, (0, 1))

    async def test_a_refusal_without_the_mark_is_told_as_it_came(self) -> None:
        other_status = (REFUSED[0], REFUSED[1].replace("status: 401", "status: 407"))
        async with routes_with("{to: acme_eu, when: [rejected]}", other_status) as routes:
            reply = await charge(routes, "unauthorized")
            assert (reply.status_code, outcome(reply)) == (401, "failed")
            assert not routes.second.arrivals.arrivals

    async def test_a_decline_is_no_refusal(self) -> None:
        async with routes_with("{to: acme_eu, when: [rejected]}", REFUSED) as routes:
            reply = await routes.world.charge(source="tok_stolen_card")
            assert (reply.status_code, outcome(reply)) == (402, "declined")
            assert not routes.second.arrivals.arrivals

    async def test_what_both_routes_did_not_execute_is_not_told_as_never_sent(self) -> None:
        async with routes_with("{to: acme_eu, when: [rejected]}", REFUSED) as routes:
            await routes.second.stop()
            reply = await charge(routes, "unauthorized")
            told = json.loads(reply.body)
            assert (reply.status_code, told["sent"], told["side_effect_may_exist"]) == (503, True, False)
            assert told["title"] == "No provider executed it, and nothing more will be sent"


class TestCandidates:
    async def test_each_route_says_why_it_was_not_taken(self) -> None:
        listed = "{to: acme_us, when: [not_sent]}, {to: acme_eu, when: [not_sent]}, {to: acme_asia, when: [absent]}"
        async with routes_with(listed) as routes:
            await routes.first.stop()
            reply = await routes.world.charge()
            assert header(reply, "Paywitness-Provider") == "acme_eu"
            assert verdicts(await choice_of(routes)) == {
                "acme_us": RouteVerdict.NO_SUCH_PROVIDER,
                "acme_eu": RouteVerdict.TAKEN,
                "acme_asia": RouteVerdict.OTHER_CAUSE,
            }

    async def test_a_route_whose_circuit_is_open_is_passed_over(self) -> None:
        async with routes_with("{to: acme_eu, when: [not_sent]}") as routes:
            await routes.first.stop()
            await routes.second.stop()
            gate = routes.world.engine.gate
            admit = gate.acquire

            async def refuse(policy, group, *rest):
                decision = await admit(policy, group, *rest)
                if policy.provider == "acme_eu":
                    return replace(decision, granted=False, refusal="circuit_open", attempt_permit=None)
                return decision

            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(type(gate), "acquire", lambda _, *given: refuse(*given))
                reply = await routes.world.charge()
            assert (reply.status_code, outcome(reply)) == (503, "not_sent")
            assert verdicts(await choice_of(routes)) == {"acme_eu": RouteVerdict.CIRCUIT_OPEN}

    async def test_the_end_of_a_fallback_is_counted_once_by_what_became_of_it(self) -> None:
        async with routes_with(ON_ABSENT) as routes:
            await charge(routes, "reset_before_commit", timeout_s=15)
            await routes.world.charge()
            counted = routes.world.engine.telemetry.metrics.registry.get_sample_value(
                "payment_fallback_outcomes_total",
                {"from": "acme", "to": "acme_eu", "reason": "absent", "outcome": "succeeded"},
            )
            assert counted == 1
