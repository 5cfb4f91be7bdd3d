"""The model's provider: the truth that the promises are held against. What a request that arrives may do, what an
inquiry may say, what a webhook may tell. It is careless within its contract, and never lies.

- A request in the air may be delivered at any time, or never, until time passes: by then it is lost or was delivered.
- It is turned away, answered from what is kept under its key, or executed: paid, declined, failed before or after the
  effect; where the scenario says so, accepted for later, or handed to the customer.
- What it made is seen by inquiries at once or later, but not later than time passes.
- What was accepted for later is kept under the key as a success is; who must act is not, except where every answer is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from paywitness.core.provider_contract import ErrorsUnderKey, ProviderContract
from tests.core.samples import KEY_HEADER


class Truth(NamedTuple):
    """What the provider did and knows."""

    effects: tuple[int, ...] = (0,)  # of each generation under the key
    stored: str = ""  # the answer under the key
    declined: bool = False  # an execution was declined
    undecided: str = ""  # pending, action: an object that may still be paid
    link: bool = False  # the customer was given the way to act
    recent: bool = False  # something was made that an inquiry may not yet see
    events: tuple[str, ...] = ()  # that it has sent, or will

    def paid(self, generation: int) -> Truth:
        effects = tuple(count + (place == generation) for place, count in enumerate(self.effects))
        return self._replace(effects=effects, recent=True, events=_with(self.events, "success"))

    def denied(self) -> Truth:
        return self._replace(declined=True, recent=True, events=_with(self.events, "decline"))


def _with(events: tuple[str, ...], event: str) -> tuple[str, ...]:
    return events if event in events else tuple(sorted((*events, event)))


@dataclass(frozen=True)
class Scenario:
    """A contract, and how careless the provider is."""

    name: str
    contract: ProviderContract
    outcomes: frozenset[str] = frozenset()  # pending, action: beside paid, declined and failed

    @property
    def stores_all(self) -> bool:
        return self.contract.dedupes and self.contract.errors_under_key is ErrorsUnderKey.REPLAYED

    @property
    def executes_failed_again(self) -> bool:
        return self.contract.dedupes and self.contract.errors_under_key is ErrorsUnderKey.REEXECUTED

    def delivered(self, truth: Truth, generation: int, *, another_in_air: bool) -> Iterator[tuple[str, str, Truth]]:
        """What may become of a request that arrives: how it is told, its answer, and the truth after it."""
        for said, answer, after in self._executed(truth, generation, another_in_air=another_in_air):
            yield said, answer, self._told(after)

    def _told(self, truth: Truth) -> Truth:
        """Without what nobody can ever be told: worlds that differ in nothing else are one."""
        asked, webhook = self.contract.supports_inquiry, self.contract.webhook_expected
        return truth._replace(
            declined=truth.declined and asked, recent=truth.recent and asked, events=truth.events if webhook else ()
        )

    def _executed(self, truth: Truth, generation: int, *, another_in_air: bool) -> Iterator[tuple[str, str, Truth]]:
        yield "turned away", "refusal", truth
        if self.contract.dedupes and another_in_air:
            yield "told that its twin is being executed", "conflict", truth
        if truth.stored:
            yield f"answered from what is kept: {truth.stored}", truth.stored, truth
            return
        paid, declined = truth.paid(generation), truth.denied()
        yield "executed: paid", "success", self._kept(paid, "success", always=True)
        yield "executed: declined", "decline", self._kept(declined, "decline")
        yield "failed before any effect", "error", self._kept(truth, "error")
        after = self._kept(paid, "error")
        if self.executes_failed_again:
            after = paid._replace(stored="success")  # it knows what it did
        yield "failed after the effect", "error", after
        if "pending" in self.outcomes:
            made = self._made(truth, "pending")
            yield "accepted for later", "pending", self._kept(made, "pending", always=True)
        if "action" in self.outcomes:
            yield "handed to the customer", "action", self._kept(self._made(truth, "action"), "action")

    def _made(self, truth: Truth, what: str) -> Truth:
        return truth._replace(undecided=what, recent=True, events=_with(truth.events, what))

    def _kept(self, truth: Truth, answer: str, *, always: bool = False) -> Truth:
        kept = self.stores_all or (always and self.contract.dedupes)
        return truth._replace(stored=answer) if kept else truth

    def decided(self, truth: Truth, generation: int) -> Iterator[tuple[str, Truth]]:
        """What becomes of an object that waits for the bank or the customer."""
        for said, after in self._decided(truth, generation):
            yield said, self._told(after)

    def _decided(self, truth: Truth, generation: int) -> Iterator[tuple[str, Truth]]:
        if truth.undecided == "pending":
            yield "what was accepted is paid", truth.paid(generation)._replace(undecided="")
            yield "what was accepted is declined", truth.denied()._replace(undecided="")
        if truth.undecided == "action" and truth.link:
            yield "the customer acts, and pays", truth.paid(generation)._replace(undecided="", link=False)
            yield "the customer acts, and is declined", truth.denied()._replace(undecided="", link=False)

    def found(self, truth: Truth) -> Iterator[str]:
        """What an inquiry may find now."""
        known = "success" if sum(truth.effects) else truth.undecided or ("decline" if truth.declined else "miss")
        yield known
        if truth.recent:
            if truth.declined and known != "decline":
                yield "decline"
            if known != "miss":
                yield "miss"
        yield "no answer"


def scenario(errors: str, *, asked: bool, webhook: bool, outcomes: tuple[str, ...] = ()) -> Scenario:
    """`errors`: what the provider keeps under a key; `none`: it has no keys."""
    keyed = errors != "none"
    contract = ProviderContract(
        send_as=KEY_HEADER if keyed else None,
        window_s=86_400.0 if keyed else None,
        errors_under_key=ErrorsUnderKey(errors) if keyed else ErrorsUnderKey.UNKNOWN,
        supports_inquiry=asked,
        webhook_expected=webhook,
    )
    said = (errors, "asked" if asked else "cannot be asked", *(["webhook"] if webhook else []), *outcomes)
    return Scenario(", ".join(said), contract, frozenset(outcomes))


ERRORS = ("replayed", "reexecuted", "not_stored", "none")
