"""What a case may expect: the facts that a trial finds, by name, and how each is written."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from proxy.core.decide import RULES, SAFE_RULE, Action
from proxy.core.notice import Finder
from proxy.core.operation import Found, Outcome, State
from proxy.core.reading import Effect, Reading
from proxy.core.reply import Problem
from proxy.policy.marks import did_you_mean, listed
from proxy.policy.scalars import Reader, Wrong, money, text, whole, word_of
from proxy.policy.schema import Block

NONE = "none"  # a fact that there is not: no operation, no key, nobody told anything yet
RULE_NAMES = tuple(rule.name for rule in (*RULES, SAFE_RULE))


def _or_none(reader: Reader[str]) -> Reader[str]:
    def read(value: str) -> str:
        return value if value == NONE else reader(value)

    return read


def _one_of(kinds: type[StrEnum]) -> Reader[str]:
    return _or_none(word_of(*(str(kind) for kind in kinds), NONE))


def _money(value: str) -> str:
    return str(money(value))


def _status(value: str) -> str:
    return str(whole(100, 599)(value))


def _rule(value: str) -> str:
    if value not in RULE_NAMES:
        raise Wrong(f"the name of a rule: {listed(RULE_NAMES)}", hint=did_you_mean(value, RULE_NAMES))
    return value


READERS: Mapping[str, Reader[str]] = {
    "operation": text,
    "client_key": text,
    "key_from": text,
    "provider_key": word_of("own", "derived", NONE),
    "account": text,
    "amount": _or_none(_money),
    "guard": text,
    "class": _one_of(Reading),
    "effect": _or_none(word_of(*Effect)),
    "row": text,
    "observed": text,
    "reference": text,
    "found": _one_of(Found),
    "found_by": _one_of(Finder),
    "state": _one_of(State),
    "action": _one_of(Action),
    "because": _or_none(_rule),
    "outcome": _one_of(Outcome),
    "status": _or_none(_status),
    "problem": _one_of(Problem),
}
EXPECT = Block(
    "expect",
    {
        "operation": "the operation's name, or none",
        "client_key": "the caller's key, or generated",
        "key_from": "where it was found: header:NAME, body:PATH, paywitness-key or generated",
        "provider_key": "own (the caller's), derived or none",
        "account": "a list: what each place of 'account' holds",
        "amount": "an amount in major units and its currency, such as 10.99 EUR, or none",
        "guard": "intent:TEXT, target:TEXT, fingerprint or none",
        "class": "a reading, or none",
        "effect": "none, possible or done",
        "row": "the row that read it, such as classify[2] or answers.charge[0], or a built-in rule such as http_500",
        "observed": "the first row with 'observe: true' that would have read it, or none",
        "reference": "the provider's name for it, or none",
        "found": "of 'asked', 'event' and 'cancelled': hit, missed, failed, not_ours or none",
        "found_by": "of 'event': operation_id, provider_key, client_key, reference, intent or none",
        "state": "the operation's state after it",
        "action": "what is decided, or none",
        "because": "the name of the rule that decided it",
        "outcome": "what became of the money, in the caller's word",
        "status": "the status that the caller gets, or none while it is tried again",
        "problem": "the problem that the caller gets, or none where it is the provider's own answer",
    },
)
