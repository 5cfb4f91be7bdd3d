"""Policies as plain values: parsed and checked elsewhere, ready to decide by. No YAML, no expression library.

A Provider is one policy file; a Policy is one of its operations with everything that applies to it already merged
in. The priority rules are here too. A priority decides which call waits and whose retry is refused first, never whether
a payment may be made. `policy diff` prints the field names of these classes, so a renamed field changes its output.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from paywitness.core import policy_defaults
from paywitness.core.account_rules import AccountRules, BackgroundCredentials, EarlierRule
from paywitness.core.bodies.tree import Encoding, Tree
from paywitness.core.budget import BudgetRules
from paywitness.core.call import Priority
from paywitness.core.circuit import CircuitRules
from paywitness.core.classify import ClassifyRules, Condition, Expression
from paywitness.core.credential_owners import AccountSource
from paywitness.core.fallback import Fallback, FallbackCause
from paywitness.core.holds import LimitedBy
from paywitness.core.inquiry import Cancel, Inquiry
from paywitness.core.money import Money, Unit, read_money
from paywitness.core.operation import RepeatPaymentRule
from paywitness.core.payment_rules import PaymentRules
from paywitness.core.payout_rules import PayoutRules
from paywitness.core.provider_contract import FieldKind, FieldRef, OperationKind, ProviderContract
from paywitness.core.result import ResultClass
from paywitness.core.retry import RetryRule
from paywitness.core.template import Template
from paywitness.core.webhook_event import WebhookRules

DEFAULT_PRIORITY = Priority(policy_defaults.PRIORITY)


@dataclass(frozen=True, slots=True)
class PriorityRule:
    """One row of `priority`. Every condition in it must hold; a row without conditions applies to every call."""

    priority: Priority  # `as`
    when: Condition | None = None  # over the request's body
    above: Money | None = None
    below: Money | None = None

    def applies(self, tree: Tree, money: Money | None) -> bool:
        return (
            (self.above is None or _is_more(money, self.above))
            and (self.below is None or _is_less(money, self.below))
            and (self.when is None or bool(self.when(tree)))
        )


def priority_of(
    caller_priority: Priority | None, rules: tuple[PriorityRule, ...], tree: Tree, money: Money | None
) -> Priority:
    """The caller's own priority, else the first row that applies, else the default."""
    if caller_priority is not None:
        return caller_priority
    for rule in rules:
        if rule.applies(tree, money):
            return rule.priority
    return DEFAULT_PRIORITY


# A condition on the amount does not hold if the amount is unknown or in another currency.


def _is_more(money: Money | None, bound: Money) -> bool:
    return money is not None and money.currency == bound.currency and money.minor_units > bound.minor_units


def _is_less(money: Money | None, bound: Money) -> bool:
    return money is not None and money.currency == bound.currency and money.minor_units < bound.minor_units


# --- Policies


class UnmatchedCalls(StrEnum):
    FORWARD = "forward"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Route:
    """A method and a path template: `POST /v1/charges/{charge}/refunds`."""

    method: str
    segments: tuple[str, ...]  # "{name}" segments match any one non-empty segment
    literal: bool = field(init=False, compare=False, repr=False)  # no segment is a parameter

    def __post_init__(self) -> None:
        object.__setattr__(self, "literal", not any(template.startswith("{") for template in self.segments))

    def match(self, method: str, segments: tuple[str, ...]) -> dict[str, str] | None:
        """The template's parameters, or None if the path does not match."""
        if method != self.method or len(segments) != len(self.segments):
            return None
        if self.literal:
            return {} if segments == self.segments else None
        parameters: dict[str, str] = {}
        for template, segment in zip(self.segments, segments, strict=True):
            if template.startswith("{"):
                if not segment:
                    return None
                parameters[template[1:-1]] = segment
            elif template != segment:
                return None
        return parameters

    def __str__(self) -> str:
        return f"{self.method} /{'/'.join(self.segments)}"


@dataclass(frozen=True, slots=True)
class AmountField:
    """The place of the amount in the request. `absent_is_full`: no amount means the full amount (captures, refunds)."""

    at: Expression
    unit: Unit = Unit.MINOR
    absent_is_full: bool = False


# For the whole response from its first byte, so that a byte every nine seconds does not last for ever. No policy key
# sets it.
_RESPONSE_S = 60.0


@dataclass(frozen=True, slots=True)
class UpstreamTimeouts:
    """How long each phase of a request to a provider may take, in seconds."""

    connect_s: float = policy_defaults.TIMEOUT_CONNECT_S
    tls_s: float = policy_defaults.TIMEOUT_TLS_S
    write_s: float = policy_defaults.TIMEOUT_WRITE_S
    first_byte_s: float = policy_defaults.TIMEOUT_FIRST_BYTE_S
    body_idle_s: float = policy_defaults.TIMEOUT_BODY_IDLE_S
    response_s: float = _RESPONSE_S


@dataclass(frozen=True, slots=True)
class Timeouts(UpstreamTimeouts):
    """The timeouts of a policy: those of each attempt, and the caller's."""

    deadline_s: float = policy_defaults.TIMEOUT_DEADLINE_S


@dataclass(frozen=True, slots=True)
class ResolutionRules:
    """How an unknown outcome is resolved after the caller has left."""

    settle_s: float = policy_defaults.RESOLVE_SETTLE_S
    resend_for_s: float = policy_defaults.RESOLVE_RESEND_FOR_S
    schedule_s: tuple[float, ...] = policy_defaults.RESOLVE_SCHEDULE_S
    action_expires_s: float = policy_defaults.RESOLVE_ACTION_EXPIRES_S
    cancels_expired_action: bool = False  # whether to cancel a payment that the customer has not confirmed in time


@dataclass(frozen=True, slots=True)
class UpstreamTrust:
    """How a provider is reached and authenticated, and how we authenticate to it. Paths of PEM files; empty: none."""

    roots: str = ""  # the CA certificates that may sign the provider's; empty: the system's
    certificate: str = ""  # our client certificate, if the provider asks for one
    key: str = ""  # of our certificate; empty: in the same file
    private: bool = False  # the provider's name may resolve to a private address


class ConnectionUse(StrEnum):
    """Which connections attempts use."""

    AUTO = "auto"  # a kept connection, if the contract permits a re-send; else a new one for each attempt
    REUSE = "reuse"
    FRESH = "fresh"


@dataclass(frozen=True, slots=True)
class Policy:
    """Our choices for one operation of one provider, within what its contract allows."""

    provider: str
    operation: str
    kind: OperationKind
    routes: tuple[Route, ...]
    contract: ProviderContract
    classify: ClassifyRules
    revision: str  # content hash of the provider's policy; the journal keeps the content under this hash
    upstream: str
    trust: UpstreamTrust = UpstreamTrust()
    connections: ConnectionUse = ConnectionUse(policy_defaults.CONNECTIONS)
    encoding: Encoding = Encoding(policy_defaults.BODY)
    where: Condition | None = None
    account: tuple[FieldRef, ...] = ()
    take_from: tuple[FieldRef, ...] = ()
    key_required: bool = False
    names: tuple[str, str] = ("", "")  # provider and operation in keys (`formerly:`); empty: their own names
    stamp: FieldRef | None = None
    stamp_reserved: FieldRef | None = None  # the place of the stamp at the provider's level: no caller may write there
    stamp_keys_max: int | None = None  # how many keys the object around the stamp may have, the stamp included
    ignore: tuple[str, ...] = ()
    never_store: tuple[str, ...] = ()
    amount: AmountField | None = None
    currency: Expression | None = None
    intent: Expression | None = None
    target: FieldRef | None = None
    target_also: tuple[FieldRef, ...] = ()  # of a payout: further places; all of them together are its reference
    payment: PaymentRules = PaymentRules()
    payout: PayoutRules | None = None
    merchant: str = ""
    after_success: RepeatPaymentRule = RepeatPaymentRule(policy_defaults.AFTER_SUCCESS)
    during_action: RepeatPaymentRule = RepeatPaymentRule(policy_defaults.DURING_ACTION)
    timeouts: Timeouts = Timeouts()
    retry: Mapping[ResultClass, RetryRule] = field(default_factory=dict)
    retry_default: RetryRule = RetryRule()
    resolve: ResolutionRules = ResolutionRules()
    problem: Mapping[str, Any] | None = None  # the provider's error shape, with {detail} and {code} in its texts
    give_up_headers: tuple[tuple[str, str], ...] = ()  # added to our own replies if a repeat cannot help
    headers: tuple[tuple[str, str], ...] = ()  # request headers that the policy forces
    inquiries: tuple[Inquiry, ...] = ()  # the inquiries about an operation, in the order to try them
    cancel: Cancel | None = None
    as_response: Expression | None = None  # turns the object of an inquiry or event into the response to a duplicate
    dashboard: Template | None = None  # a link to the provider's own page about it
    fallbacks: tuple[Fallback, ...] = ()
    credentials: BackgroundCredentials | None = None
    accounts: AccountRules = AccountRules()
    of_file: Policy | None = None  # the policy of the whole file, if this one is for a single account
    acts_for: str = ""  # the name of the account of `accounts:` that the call acts for; see `account_choice`
    account_told_by: AccountSource | None = None  # the source of that name; None: the call's own places and header
    only_we_know: bool = False  # the provider cannot tell this account from others: equal client keys would collide
    observe: bool = False
    budget: BudgetRules = BudgetRules()  # the provider's, here because the retry decision needs it
    limited_by: LimitedBy = LimitedBy(policy_defaults.LIMITED_BY)  # which calls a 429 of the provider concerns
    request_id_header: str = ""  # the response header with the provider's id of the request; empty: none
    priorities: tuple[PriorityRule, ...] = ()  # the operation's rows, then the provider's

    # Values that follow from the fields above, computed once because every call reads them.
    key_provider: str = field(init=False, repr=False, compare=False)  # the provider's name in keys
    key_operation: str = field(init=False, repr=False, compare=False)
    fingerprint_ignores: tuple[str, ...] = field(init=False, repr=False, compare=False)
    makes_payment: bool = field(init=False, repr=False, compare=False)
    reuses_connections: bool = field(init=False, repr=False, compare=False)
    asks_before_claim: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key_provider", self.names[0] or self.provider)
        object.__setattr__(self, "key_operation", self.names[1] or self.operation)
        object.__setattr__(self, "fingerprint_ignores", self._fingerprint_ignores())
        object.__setattr__(self, "makes_payment", self._makes_payment())
        object.__setattr__(self, "reuses_connections", self._reuses_connections())
        object.__setattr__(self, "asks_before_claim", self._asks_before_claim())

    def _fingerprint_ignores(self) -> tuple[str, ...]:
        """The fields that the fingerprint leaves out: those in the policy, and the key itself. SDKs make a new key for
        each call, and we write the key that goes out. The same order under another key is still the same order."""
        send_as = self.contract.send_as
        is_in_body = send_as is not None and send_as.kind is FieldKind.BODY
        return (*self.ignore, send_as.name) if send_as is not None and is_in_body else self.ignore

    def _makes_payment(self) -> bool:
        """Whether a call creates a payment, or the object of a payment, if it does not act on an existing one."""
        return self.kind.pays or (self.kind is OperationKind.NONE and self.classify.reference is not None)

    def _asks_before_claim(self) -> bool:
        """Whether a look-up or an inquiry must come before the claim: for the call's owner, for an identity that an
        earlier rule gave it, or for the intent of the object that it acts on."""
        accounts = self.accounts
        return accounts.asks_for_owner or bool(accounts.earlier) or self.payment.intent_at is not None

    def _reuses_connections(self) -> bool:
        """Whether an attempt may use a kept connection. The provider may close an idle connection at the moment when
        the request goes out. Then the outcome is unknown although nothing has arrived, and only a re-send resolves it
        at once."""
        if self.connections is not ConnectionUse.AUTO:
            return self.connections is ConnectionUse.REUSE
        return self.contract.permits_resend if self.kind.moves_money else self.contract.dedupes

    def of_owner(self, owner: str) -> Policy:
        """The policy for one of several owners: each is an account of its own."""
        account = (*self.account, FieldRef(FieldKind.CONST, owner))
        return replace(self, account=account, of_file=self.of_file or self)

    def under_every_rule(self) -> tuple[Policy, ...]:
        """The policy, and its variants under each earlier rule for accounts."""
        earlier = [
            self.under(rule)
            for rule in self.accounts.earlier
            if not rule.many  # otherwise the owner was part of it, and each owner finds its own operations
        ]
        return (self, *earlier)

    def under(self, rule: EarlierRule) -> Policy:
        """The policy under an earlier rule for accounts, for calls of no account that the rule named."""
        accounts = replace(self.accounts, many=rule.many, named=(), earlier=())
        return replace(
            self,
            account=rule.account,
            merchant=rule.merchant,
            accounts=accounts,
            of_file=None,
            account_told_by=None,
            only_we_know=False,
        )

    def retry_rule(self, result_class: ResultClass) -> RetryRule:
        return self.retry.get(result_class, self.retry_default)

    def fallback_for(self, cause: FallbackCause | None) -> Fallback | None:
        """The first fallback that the policy lists for this cause."""
        for fallback in self.fallbacks:
            if cause in fallback.when:
                return fallback
        return None

    def money_in(self, tree: Tree) -> Money | None:
        """The amount in a request; None if it has none. Raises MoneyError if the value is not an amount."""
        if self.amount is None or self.currency is None:
            return None
        amount, currency = self.amount.at(tree), self.currency(tree)
        return None if amount is None or currency is None else read_money(amount, currency, self.amount.unit)


# The operations whose route matches a call, each with the parameters of its path, in the order of the file.
Candidates = tuple[tuple[Policy, dict[str, str]], ...]


@dataclass(frozen=True, slots=True)
class Provider:
    """One policy file: a provider's address and its operations."""

    name: str
    upstream: str
    hosts: tuple[str, ...]
    revision: str
    content: str  # the text of the file; the journal keeps it under its revision
    source: str  # the file's path, for messages
    policies: tuple[Policy, ...]
    unmatched: UnmatchedCalls = UnmatchedCalls(policy_defaults.UNMATCHED)
    listen: str | None = None
    timeouts: Timeouts = Timeouts()
    problem: Mapping[str, Any] | None = None
    identity: Mapping[str, Any] = field(default_factory=dict)  # the values that must not change under a journal
    identity_change_accepted: bool = False
    webhook_rules: WebhookRules | None = None  # how the provider's webhooks are checked, read and matched
    account: tuple[FieldRef, ...] = ()
    key_name: str = ""  # the provider's name in keys
    circuit: CircuitRules = CircuitRules()
    trust: UpstreamTrust = UpstreamTrust()
    observe: bool = False  # shadow mode: decides and counts, but changes nothing; calls pass unchanged
    same_credentials_as: str = ""  # the provider that it mirrors: it may get the credentials for that provider

    @property
    def merchants(self) -> frozenset[str]:
        """The merchants of the accounts in the policy; none if each account is a merchant of its own."""
        named = [(policy.merchant, *(each.merchant for each in policy.accounts.named)) for policy in self.policies]
        return frozenset(name for names in named for name in names if name)

    @property
    def falls_back(self) -> bool:
        """Whether another route may have made a payment that was requested from this provider."""
        return any(policy.fallbacks for policy in self.policies)
