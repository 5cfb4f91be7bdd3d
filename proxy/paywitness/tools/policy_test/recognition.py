"""From a case's request to its operation: match, keys, account, amount, guard, as the engine does it."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote

from paywitness.core.account_choice import with_listed_credentials
from paywitness.core.bodies.tree import Encoding
from paywitness.core.call import Call, CallerOptions
from paywitness.core.identity import value_in
from paywitness.core.operation import Operation
from paywitness.core.policy import Policy, Provider, UnmatchedCalls
from paywitness.core.problems import PROBLEMS, Problem
from paywitness.core.recognise import RecognisedCall, RecognitionRefusal, recognise
from paywitness.policy.book import PolicyBook
from paywitness.tools.policy_test.case import NONE, GivenRequest, body_bytes

OPERATION_ID = "op_case"
GENERATED = "generated"
SENT_AT = 1_800_000_000.0  # any time will do: no clock is read
SECRET = b"policy test: the identity of no journal"
_CONTROL_HEADERS = ("paywitness-key", "paywitness-intent", "paywitness-account", "paywitness-distinct")


class CaseError(Exception):
    """A case that makes no sense. The message is for its author."""


@dataclass(frozen=True, slots=True)
class RecognisedCase:
    """A request that is an operation, and the operation after its first send."""

    recognised: RecognisedCall
    operation: Operation

    @property
    def policy(self) -> Policy:
        return self.recognised.policy

    def placeholders(self, reference: str | None = None) -> dict[str, str]:
        return placeholders_of(self.operation, reference)


def placeholders_of(operation: Operation, reference: str | None) -> dict[str, str]:
    """The values of `{operation_id}` and the like in texts of a response."""
    found = {"operation_id": operation.stamp, "client_key": operation.client_key}
    found |= {"provider_key": operation.provider_key} if operation.provider_key is not None else {}
    return found | ({"reference": reference} if reference is not None else {})


def recognise_case(request: GivenRequest, provider: Provider) -> tuple[RecognisedCase | None, dict[str, str]]:
    """The operation and the facts about it. None if the call would be refused or only be forwarded."""
    return recognise_call(call_of(request, provider), provider)


def recognise_call(call: Call, provider: Provider) -> tuple[RecognisedCase | None, dict[str, str]]:
    """As `recognise_case`, for a call."""
    provider = with_credentials_as_written(provider)
    found = recognise(call, provider, PolicyBook.of([provider]).candidates, SECRET, lambda: GENERATED)
    if found is None:
        refused = provider.unmatched is UnmatchedCalls.REFUSE
        return None, {"operation": NONE, **(_refused(Problem.OPERATION_NOT_ALLOWED) if refused else {})}
    if isinstance(found, RecognitionRefusal):
        facts = _facts(found.recognised) if found.recognised is not None else {"operation": NONE}
        return None, facts | _refused(found.problem)
    operation = found.fresh_operation(OPERATION_ID, SENT_AT).changed(first_sent_at=SENT_AT)
    return RecognisedCase(found, operation), _facts(found)


def call_of(request: GivenRequest, provider: Provider) -> Call:
    """The call of the request. Raises CaseError."""
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
        CallerOptions(
            ours.get("paywitness-key"),
            ours.get("paywitness-intent"),
            ours.get("paywitness-account"),
            distinct=ours.get("paywitness-distinct"),
        ),
    )


def with_credentials_as_written(provider: Provider) -> Provider:
    """The provider, with `env:NAME` as the value of each variable that its accounts list. A request whose header is
    `env:NAME` has that credential."""
    accounts = [account for policy in provider.policies for account in policy.accounts.named]
    environment = {name: f"env:{name}" for account in accounts for name in account.variables}
    return with_listed_credentials(provider, environment, SECRET)


def _refused(kind: Problem) -> dict[str, str]:
    return {"problem": kind, "status": str(PROBLEMS[kind].status_code), "outcome": NONE}


def _facts(recognised: RecognisedCall) -> dict[str, str]:
    identity, money = recognised.identity, recognised.money
    guard = identity.guard
    provider_key = NONE
    if identity.provider_key is not None:
        provider_key = "own" if identity.provider_key == identity.client_key else "derived"
    selected = [
        value_in(place, recognised.call, recognised.tree, recognised.parameters) or ""
        for place in recognised.policy.account
    ]
    return {
        "operation": recognised.policy.operation,
        "client_key": identity.client_key,
        "key_from": identity.key_source,
        "provider_key": provider_key,
        "account": ", ".join(
            [*([recognised.call.options.account] if recognised.call.options.account else []), *selected]
        ),
        "amount": str(money) if money is not None else NONE,
        "guard": NONE if guard is None else f"{guard.kind}:{guard.label}" if guard.label else str(guard.kind),
    }
