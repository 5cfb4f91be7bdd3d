"""From a case's request to the operation it is: match, keys, account, amount, guard. As the engine does it."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote

from paywitness.core.bodies.tree import Encoding, Tree, decode, decompressed
from paywitness.core.call import Call, CallerOptions
from paywitness.core.classify import ExpectedPayment
from paywitness.core.errors import BodyError, MoneyError
from paywitness.core.identity import Identity, identify, value_in
from paywitness.core.money import Money
from paywitness.core.operation import Operation
from paywitness.core.policy import Policy, Provider, UnmatchedCalls
from paywitness.core.problems import PROBLEMS, Problem
from paywitness.engine.calls.shadow import refusal_before_claim
from paywitness.engine.calls.stored_messages import can_insert
from paywitness.policy.book import PolicyBook
from paywitness.tools.policy_test.case import NONE, GivenRequest, body_bytes

OPERATION_ID = "op_case"
GENERATED = "generated"
_SENT_AT = 1_800_000_000.0  # any time will do: nothing is asked of a clock
_SECRET = b"policy test: the identity of no journal"
_CONTROL_HEADERS = ("paywitness-key", "paywitness-intent", "paywitness-account")


class CaseError(Exception):
    """A case that makes no sense, in words for whoever wrote it."""


@dataclass(frozen=True, slots=True)
class RecognisedCase:
    """A request that is an operation."""

    call: Call
    policy: Policy
    tree: Tree
    parameters: dict[str, str]
    identity: Identity
    operation: Operation

    @property
    def expected(self) -> ExpectedPayment:
        return ExpectedPayment(self.operation.money, self.operation.sent_stamp)

    def placeholders(self, reference: str | None = None) -> dict[str, str]:
        """What texts of an answer may name: `{operation_id}` and the like."""
        operation = self.operation
        found = {"operation_id": operation.id, "client_key": operation.client_key}
        found |= {"provider_key": operation.provider_key} if operation.provider_key is not None else {}
        return found | ({"reference": reference} if reference is not None else {})


def recognise(request: GivenRequest, provider: Provider) -> tuple[RecognisedCase | None, dict[str, str]]:
    """The operation, or None where nothing would be sent or it would only be forwarded; and the facts of it."""
    return recognise_call(_call(request, provider), provider)


def recognise_call(call: Call, provider: Provider) -> tuple[RecognisedCase | None, dict[str, str]]:
    """The same of a call that is there already."""
    encoding = provider.policies[0].encoding if provider.policies else Encoding.JSON
    try:
        tree = decode(decompressed(call.body, call.header("Content-Encoding")), encoding)
        matched = PolicyBook.of([provider]).match(provider.name, call.method, call.segments, lambda: tree)
    except BodyError:
        return None, {"operation": NONE, **_refused(Problem.BODY_UNREADABLE)}
    if matched is None:
        refused = provider.unmatched is UnmatchedCalls.REFUSE
        return None, {"operation": NONE, **(_refused(Problem.OPERATION_NOT_ALLOWED) if refused else {})}
    policy, parameters = matched
    identity = identify(call, policy, tree, parameters, _SECRET, lambda: GENERATED)
    recognised = RecognisedCase(call, policy, tree, parameters, identity, _operation(call, policy, identity, tree))
    facts = _facts(recognised)
    problem = refusal_before_claim(call, policy, tree, identity)
    return (recognised, facts) if problem is None else (None, facts | _refused(problem))


def _call(request: GivenRequest, provider: Provider) -> Call:
    path, _, query = request.target.partition("?")
    ours = {name.lower(): value for name, value in request.headers.items() if name.lower().startswith("paywitness-")}
    for name in ours:
        if name not in _CONTROL_HEADERS:
            raise CaseError(f"the request has {name}; of our own headers a case takes {', '.join(_CONTROL_HEADERS)}")
    encoding = provider.policies[0].encoding if provider.policies else Encoding.JSON
    return Call(
        provider.name,
        request.method,
        path,
        query,
        tuple(unquote(segment) for segment in path[1:].split("/")),
        tuple(
            (name.encode("latin-1", "replace"), value.encode("latin-1", "replace"))
            for name, value in request.headers.items()
            if name.lower() not in ours
        ),
        body_bytes(request.body, encoding),
        CallerOptions(ours.get("paywitness-key"), ours.get("paywitness-intent"), ours.get("paywitness-account")),
    )


def _refused(kind: Problem) -> dict[str, str]:
    return {"problem": kind, "status": str(PROBLEMS[kind].status_code), "outcome": NONE}


def _facts(recognised: RecognisedCase) -> dict[str, str]:
    identity, operation = recognised.identity, recognised.operation
    guard = operation.guard
    provider_key = NONE
    if identity.provider_key is not None:
        provider_key = "own" if identity.provider_key == identity.client_key else "derived"
    selected = [
        value_in(place, recognised.call, recognised.tree, recognised.parameters) or ""
        for place in recognised.policy.account
    ]
    return {
        "operation": operation.operation,
        "client_key": identity.client_key,
        "key_from": identity.key_source,
        "provider_key": provider_key,
        "account": ", ".join(
            [*([recognised.call.options.account] if recognised.call.options.account else []), *selected]
        ),
        "amount": str(operation.money) if operation.money is not None else NONE,
        "guard": NONE if guard is None else f"{guard.kind}:{guard.label}" if guard.label else str(guard.kind),
    }


def _operation(call: Call, policy: Policy, identity: Identity, tree: Tree) -> Operation:
    return Operation(
        id=OPERATION_ID,
        stamp=OPERATION_ID,
        unstamped=not can_insert(call, policy, tree, policy.stamp),
        key=identity.key,
        generation=1,
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
        request_hash="",
        credential=identity.credential,
        revision=policy.revision,
        upstream=policy.upstream,
        created_at=_SENT_AT,
        updated_at=_SENT_AT,
        first_sent_at=_SENT_AT,
        money=_money(policy, tree),
        guard=identity.guard,
    )


def _money(policy: Policy, tree: Tree) -> Money | None:
    try:
        return policy.money_in(tree)
    except MoneyError:
        return None
