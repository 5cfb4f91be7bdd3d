"""Recognition: from a call to the operation it is, or to the reason why it is refused before anything is written.

The engine, shadow mode and the policy tools all use this function, so that a tool says what the engine does. The
policy book stands above the core, so its `candidates` are a parameter. The body is decoded once, and only if the path
is that of an operation: whose it is, if the body decides that, must not be guessed from one that cannot be read.
"""

from __future__ import annotations

from collections.abc import Callable

from paywitness.core.account_choice import choose_account
from paywitness.core.bodies.tree import Encoding, Tree, can_splice, contains_any, decode, decompressed, value_at
from paywitness.core.call import Call, Priority
from paywitness.core.credential_and_hop_headers import CREDENTIAL_HEADERS
from paywitness.core.credential_owners import AccountSource
from paywitness.core.errors import BodyError, BodyOverBound, MoneyError
from paywitness.core.identity import Identity, created_intent, identify, is_usable_key, request_hash_of, value_in
from paywitness.core.money import Money, Unit, read_money
from paywitness.core.operation import Operation
from paywitness.core.payment import (
    PaymentName,
    name_key,
)
from paywitness.core.payment_claims import PaymentClaim
from paywitness.core.payment_rules import IncrementMeaning
from paywitness.core.payout import PayoutClaim
from paywitness.core.payout_claims import payout_claim
from paywitness.core.policy import Candidates, Policy, Provider, priority_of
from paywitness.core.problems import ANOTHER_ACCOUNT, Problem
from paywitness.core.provider_contract import FieldKind, OperationKind
from paywitness.core.record import record

PathParameters = dict[str, str]
FindCandidates = Callable[[str, str, tuple[str, ...]], Candidates]  # by provider, method and path segments

_UNCOMPRESSED = frozenset({b"", b"identity"})


@record
class RecognisedCall:
    """A call that is an operation, with everything that its policy reads from it."""

    call: Call
    policy: Policy
    tree: Tree
    parameters: PathParameters
    identity: Identity
    money: Money | None  # None also if the amount is unreadable: the provider refuses such a call better than we can
    unstamped: bool  # the request has no room for our stamp
    holds_unstorable_data: bool
    request_hash: str  # of a request that must not be stored, to recognise it when it is repeated; else empty
    priority: Priority
    payment: PaymentClaim
    payout: PayoutClaim | None = None  # what it means for the rules of its payouts, if its policy has some

    def fresh_operation(self, operation_id: str, now: float) -> Operation:
        """The operation that this call would start, in its first generation."""
        identity, policy = self.identity, self.policy
        return _EMPTY_OPERATION.changed(
            id=operation_id,
            stamp=operation_id,
            unstamped=self.unstamped,
            key=identity.key,
            provider=policy.provider,
            operation=policy.operation,
            kind=policy.kind,
            account=identity.account,
            client_key=identity.client_key,
            key_source=identity.key_source,
            key_names_purchase=identity.key_names_purchase,
            provider_key=identity.provider_key,
            fingerprint=identity.fingerprint,
            ignore=identity.ignore,
            request_hash=self.request_hash,
            credential=identity.credential,
            account_source=identity.account_source,
            named_account="" if identity.account_source is AccountSource.HEADER else policy.acts_for,
            revision=policy.revision,
            upstream=policy.upstream,
            created_at=now,
            updated_at=now,
            money=self.money,
            guard=identity.guard,
            distinct=self.call.options.distinct or "",
            priority=self.priority,
            payment=operation_id if self.payment.acts_on is None and policy.makes_payment else "",
            in_parts=self.payment.intent_total is not None and policy.kind.pays,
            keyed_as=policy.names[0] if policy.names[0] != policy.provider else "",
        )


@record
class RecognitionRefusal:
    """Why a call is refused before anything is written or sent."""

    problem: Problem
    detail: str
    policy: Policy | None = None  # None: the body could not be read, and the operation depends on the body
    recognised: RecognisedCall | None = None  # None: the body could not be read


def recognise(
    call: Call, provider: Provider, find: FindCandidates, secret: bytes, generate_key: Callable[[], str]
) -> RecognisedCall | RecognitionRefusal | None:
    """The operation that a call is, or its refusal, or None if no operation matches.

    `generate_key` makes a key if the caller gives none.
    """
    candidates = find(call.provider, call.method, call.segments)
    if not candidates:
        return None
    policy = candidates[0][0] if candidates[0][0].where is None else None
    coding, contradicts = call.headers_by_name.get(b"content-encoding"), False
    try:
        body = call.body if coding is None else decompressed(call.body, coding.decode("latin-1"))
        tree = decode(body, provider.policies[0].encoding if provider.policies else Encoding.JSON)
        matched = first_for(candidates, tree)
        if matched is None:
            return None
        policy, parameters = matched
        if policy.accounts.named:
            chosen = choose_account(policy, call, tree, parameters, secret)
            policy, contradicts = chosen.policy, chosen.contradicts
        recognised = recognise_under(policy, call, tree, parameters, secret, generate_key)
    except BodyOverBound as error:
        return RecognitionRefusal(Problem.TOO_LARGE, f"{error}. Nothing was sent. Send a smaller body.", policy)
    except BodyError as error:
        return RecognitionRefusal(Problem.BODY_UNREADABLE, f"{error}. Nothing was sent.", policy)
    if contradicts:
        return RecognitionRefusal(Problem.CREDENTIAL_NOT_RECOGNISED, ANOTHER_ACCOUNT, policy, recognised)
    return _refusal_of(recognised) or recognised


def first_for(candidates: Candidates, tree: Tree) -> tuple[Policy, PathParameters] | None:
    """The operation that a call of this body is, of those that have its route."""
    for policy, parameters in candidates:
        if policy.where is None or policy.where(tree):
            return policy, parameters
    return None


def recognise_under(
    policy: Policy,
    call: Call,
    tree: Tree,
    parameters: PathParameters,
    secret: bytes,
    generate_key: Callable[[], str],
) -> RecognisedCall:
    """What a call is under a policy that is known to match it. Nothing is refused here."""
    identity = identify(call, policy, tree, parameters, secret, generate_key)
    try:
        money = policy.money_in(tree)
    except MoneyError:
        money = None
    unstorable = contains_any(tree, policy.never_store)
    stamp, unstamped = policy.stamp, False
    if stamp is not None and stamp.kind is FieldKind.BODY:
        limit, fits = policy.stamp_keys_max, _can_insert(call, policy, tree, stamp.name)
        unstamped = not fits or (limit is not None and _is_full(stamp.name, limit, tree))
    return RecognisedCall(
        call,
        policy,
        tree,
        parameters,
        identity,
        money,
        unstamped=unstamped,
        holds_unstorable_data=unstorable,
        request_hash=request_hash_of(call.method, call.target, call.body, secret) if unstorable else "",
        priority=priority_of(call.options.priority, policy.priorities, tree, money),
        payment=payment_claim(call, policy, tree, parameters, identity, money, secret),
        payout=payout_claim(call, policy, tree, parameters, identity, money, secret) if policy.payout else None,
    )


def payment_claim(
    call: Call,
    policy: Policy,
    tree: Tree,
    parameters: PathParameters,
    identity: Identity,
    money: Money | None,
    secret: bytes,
) -> PaymentClaim:
    """What the call means for a payment: the one that it acts on, and what it moves of it."""
    rules = policy.payment
    if not rules.acts_on and rules.intent_total is None and policy.kind is not OperationKind.NONE:
        return _MAKES_A_PAYMENT
    acts_on = None
    for place in rules.acts_on:
        name = value_in(place, call, tree, parameters)
        if name:
            scope = policy.names[0] or policy.provider
            acts_on = PaymentName(name, name_key(scope, identity.account, name))
            break
    amount = policy.amount.at(tree) if policy.amount is not None and money is None else None
    return PaymentClaim(
        acts_on=acts_on,
        amount=amount,
        unit=policy.amount.unit if policy.amount is not None else Unit.MINOR,
        takes_remainder=amount is None and policy.amount is not None and policy.amount.absent_is_full,
        intent=created_intent(call, policy, tree, identity.account, secret),
        limits=rules.limits,
        once_per_target=rules.once_per_target,
        increment_means=rules.increment_means or IncrementMeaning.TOTAL,
        intent_total=_intent_total(policy, tree, money),
        after_success=policy.after_success,
        during_action=policy.during_action,
    )


_MAKES_A_PAYMENT = PaymentClaim()


def _intent_total(policy: Policy, tree: Tree, money: Money | None) -> Money | None:
    if policy.payment.intent_total is None or money is None or policy.amount is None:
        return None
    try:
        return read_money(policy.payment.intent_total(tree), money.currency, policy.amount.unit)
    except MoneyError:
        return None


def _refusal_of(recognised: RecognisedCall) -> RecognitionRefusal | None:
    policy, identity, send_as = recognised.policy, recognised.identity, recognised.policy.contract.send_as
    call = recognised.call
    repeats_header = len(call.headers_by_name) < len(call.headers)
    if repeats_header and (twice := _ambiguous_header(call, policy)) is not None:
        problem = Problem.MALFORMED
        detail = f"The header {twice} says whose call it is, and stands there twice. Nothing was sent."
    elif (
        send_as is not None
        and send_as.kind is FieldKind.BODY
        and not _can_insert(call, policy, recognised.tree, send_as.name)
    ):
        problem, detail = Problem.BODY_UNREADABLE, f"the body has no room for {send_as.name}. Nothing was sent."
    elif policy.key_required and identity.key_source == "generated":
        problem = Problem.KEY_REQUIRED
        detail = f"The policy of {policy.provider} demands a key: send Paywitness-Key, or the provider's own."
    elif not is_usable_key(identity.client_key):
        problem, detail = Problem.KEY_INVALID, "A key has 1 to 255 printable characters. Nothing was sent."
    else:
        return None
    return RecognitionRefusal(problem, detail, policy, recognised)


def _ambiguous_header(call: Call, policy: Policy) -> str | None:
    """A header that tells whose call it is and that stands there more than once: the provider may read another one of
    them than we do."""
    telling = {place.name.lower().encode("latin-1") for place in policy.account if place.kind is FieldKind.HEADER}
    names = [name.lower() for name, _ in call.headers]
    twice = [name for name in (*sorted(telling), *CREDENTIAL_HEADERS) if names.count(name) > 1]
    return twice[0].decode("latin-1") if twice else None


def _can_insert(call: Call, policy: Policy, tree: Tree, path: str) -> bool:
    """Whether a value of ours fits into the body: if that is plain and has room for it. A header always has."""
    is_plain = call.headers_by_name.get(b"content-encoding", b"identity").lower() in _UNCOMPRESSED
    return is_plain and can_splice(call.body, policy.encoding, tree, path)


def _is_full(path: str, limit: int, tree: Tree) -> bool:
    """Whether the object that would hold the stamp has as many keys as the provider takes."""
    parent, _, name = path.rpartition(".")
    holder = value_at(tree, parent) if parent else tree
    return isinstance(holder, dict) and name not in holder and len(holder) >= limit


def empty_operation(operation_id: str, now: float) -> Operation:
    """An operation of which nothing is known yet: for a question about something that no call of ours made."""
    return _EMPTY_OPERATION.changed(id=operation_id, created_at=now, updated_at=now)


# To copy this with the fields of a call takes a quarter of the time of setting all fields.
_EMPTY_OPERATION = Operation(
    id="",
    key="",
    generation=1,
    provider="",
    operation="",
    kind=OperationKind.SALE,
    account="",
    client_key="",
    key_source="",
    key_names_purchase=False,
    provider_key=None,
    fingerprint="",
    ignore=(),
    request_hash="",
    credential="",
    revision="",
    upstream="",
    created_at=0.0,
    updated_at=0.0,
)
