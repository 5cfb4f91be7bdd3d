"""Webhook events: the messages that a provider sends us by webhook. How one is read, and which operation it is about.
Pure.

`webhook_signatures` checks the signature. The engine stores and applies events.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from paywitness.core import policy_defaults
from paywitness.core.bodies.tree import Tree
from paywitness.core.call import Headers
from paywitness.core.classify import Expression, ResponseRule
from paywitness.core.operation import Operation
from paywitness.core.provider_time import time_in

EVENT_ID_LENGTH_MAX = 255
EVENTS_MAX = 500  # in one webhook

# How long an event waits before it is matched again. If a webhook overtakes the response of its payment, the response
# is recorded within one or two seconds. After that the payment is not ours, or we learn its reference only when its
# doubt is resolved. So the later steps are those of the resolver's schedule.
_REMATCH_DELAYS_S = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 21600.0)


class MatchKey(StrEnum):
    """The kinds of names by which a webhook event can identify its operation."""

    OPERATION_ID = "operation_id"
    PROVIDER_KEY = "provider_key"
    CLIENT_KEY = "client_key"
    REFERENCE = "reference"
    INTENT = "intent"


@dataclass(frozen=True, slots=True)
class EventIdHeader:
    """A part of an event's id that is in a header of its webhook."""

    name: str

    def value_in(self, headers: Headers) -> str | None:
        """The header's value. None if the header is absent, or came more than once."""
        wanted = self.name.lower().encode("latin-1")
        values = [value for key, value in headers if key.lower() == wanted]
        return text_of(values[0].decode("latin-1").strip()) if len(values) == 1 else None


@dataclass(frozen=True, slots=True)
class EventBelongsFields:
    """The places in an event that show names of its operation. By default the places that `find` reads."""

    reference: Expression | None = None
    key: Expression | None = None  # the provider key
    stamp: Expression | None = None


@dataclass(frozen=True, slots=True)
class WebhookRules:
    """One provider's `webhook` block."""

    scheme: str
    options: Mapping[str, str]
    secrets: Mapping[str, tuple[str, ...]]  # account ("" is the main one) -> names of environment variables
    event_id: tuple[Expression | EventIdHeader, ...]  # several are joined
    find: tuple[tuple[MatchKey, Expression], ...]  # over the event, in the order to try them
    belongs: EventBelongsFields = EventBelongsFields()
    tolerance_s: float = policy_defaults.WEBHOOK_TOLERANCE_S
    events: Expression | None = None  # the events in a webhook; None: the webhook is one event
    at: Expression | None = None  # the object in the event; None: the event itself
    answers: Mapping[str, tuple[ResponseRule, ...]] = field(default_factory=dict)  # by object name
    answer: str | None = None
    answer_by: Expression | None = None
    read: tuple[ResponseRule, ...] = ()  # over the event itself, before the object's rows
    account: Expression | None = None  # the place of its account's name in an event
    payment: Expression | None = None  # the place of its payment's name, also if no call of ours made the movement
    reply: str = ""  # the reply that the provider expects
    refuse_with: int = policy_defaults.WEBHOOK_REFUSE_WITH
    relay: str | None = None  # the service's own webhook address, which gets each event at least once
    occurred_at: Expression | None = None  # the place of the time at which it happened, by the provider's clock
    hint: bool = False  # an event is no evidence, but a reason to inquire now


@dataclass(frozen=True, slots=True)
class WebhookEvent:
    """One event of a webhook, as far as it can be read without knowing its operation."""

    event_id: str
    payload: Tree
    match_values: tuple[tuple[MatchKey, str], ...]
    account: str | None  # as the event names it
    references: tuple[str, ...] = ()  # all names under which the provider may know the operation
    key: str | None = None
    stamp: str | None = None
    payment: str | None = None  # the provider's name for it

    def shows_another(self, operation: Operation, *, stamped: bool) -> bool:
        """Whether the event shows another key or stamp than this operation's, as far as both are known. `stamped`: the
        operation's own policy puts a stamp into its requests. Otherwise any stamp in an object belongs to another
        operation."""
        sent_stamp = operation.sent_stamp if stamped else None
        other_key = self.key is not None and operation.provider_key is not None and self.key != operation.provider_key
        return other_key or (self.stamp is not None and bool(sent_stamp) and self.stamp != sent_stamp)


def webhook_events_in(rules: WebhookRules, tree: Tree, headers: Headers = ()) -> tuple[WebhookEvent, ...]:
    """The events of a webhook that have an id. An event without one cannot be distinguished from its own duplicate."""
    found = rules.events(tree) if rules.events is not None else [tree]
    events = found if isinstance(found, list) else [found]
    webhook_events = []
    for event in events[:EVENTS_MAX]:
        parts = [
            part.value_in(headers) if isinstance(part, EventIdHeader) else text_of(part(event))
            for part in rules.event_id
        ]
        if not parts or any(part is None for part in parts):
            continue
        event_id = ":".join(part for part in parts if part is not None)
        if len(event_id) > EVENT_ID_LENGTH_MAX:
            continue
        named = ((match_key, text_of(expression(event))) for match_key, expression in rules.find)
        names = tuple((match_key, value) for match_key, value in named if value is not None)
        account = text_of(rules.account(event)) if rules.account is not None else None
        payment = text_of(rules.payment(event)) if rules.payment is not None else None
        shown = _shown_names(rules.belongs, event, names)
        webhook_events.append(WebhookEvent(event_id, event, names, account, *shown, payment))
    return tuple(webhook_events)


def _shown_names(
    belongs: EventBelongsFields, event: Tree, match_values: tuple[tuple[MatchKey, str], ...]
) -> tuple[tuple[str, ...], str | None, str | None]:
    """The references, the key and the stamp in an event. By default these are the references and the stamp that `find`
    reads, but not the key: it may belong to another call that changed the object."""

    def found(match_key: MatchKey) -> tuple[str, ...]:
        return tuple(value for found_by, value in match_values if found_by is match_key)

    def shown(expression: Expression | None) -> str | None:
        return text_of(expression(event)) if expression is not None else None

    reference, stamps = shown(belongs.reference), found(MatchKey.OPERATION_ID)
    references = found(MatchKey.REFERENCE) if belongs.reference is None else (reference,) if reference else ()
    stamp = (stamps[0] if stamps else None) if belongs.stamp is None else shown(belongs.stamp)
    return references, shown(belongs.key), stamp


def object_and_rules(rules: WebhookRules, event: Tree) -> tuple[Tree, tuple[ResponseRule, ...]]:
    """The provider's object in an event, and the rows that read it."""
    provider_object = rules.at(event) if rules.at is not None else event
    name = text_of(rules.answer_by(event)) if rules.answer_by is not None else rules.answer
    return provider_object, rules.answers.get(name, ()) if name is not None else ()


def standing_for_steps(operations: list[Operation]) -> list[Operation]:
    """The operations that an event may be about. If all are steps of one payment, which share its names, the newest
    paying step stands for all of them."""
    payments = {operation.payment for operation in operations}
    if len(payments) != 1 or "" in payments:
        return operations
    paying = [operation for operation in operations if operation.kind.pays] or operations
    newest = max(paying, key=lambda operation: operation.id)
    return [operation for operation in paying if operation.key == newest.key]


def delay_of_event(rules: WebhookRules, event: Tree, received_at: float) -> float | None:
    """How long after its own `occurred_at` time an event came; None if it shows no such time."""
    occurred_at = time_in(rules.occurred_at(event)) if rules.occurred_at is not None else None
    if occurred_at is None or received_at - occurred_at > _DELAY_MAX_S:
        return None
    return max(0.0, received_at - occurred_at)  # below zero: the clocks differ


def delay_since_send(operation: Operation, received_at: float) -> float | None:
    """How long after our first send an event came, for an event without a time of its own; None if it came so late that
    it may concern something later, such as a refund."""
    if operation.first_sent_at is None or received_at - operation.first_sent_at > _DELAY_SINCE_SEND_MAX_S:
        return None
    return max(0.0, received_at - operation.first_sent_at)


_DELAY_MAX_S = 30 * 86400.0  # no provider repeats an event for this long, so the time means something else
_DELAY_SINCE_SEND_MAX_S = 86400.0


def text_of(value: Tree) -> str | None:
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        return None
    text = str(value)
    return text if 0 < len(text) <= EVENT_ID_LENGTH_MAX and text.isprintable() else None


def rematch_delay_s(attempts: int) -> float:
    """How long an event that matches no operation waits after this many attempts to match it."""
    return _REMATCH_DELAYS_S[min(attempts, len(_REMATCH_DELAYS_S) - 1)]
