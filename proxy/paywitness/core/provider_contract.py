"""A provider's promises for one operation. A Policy is our choice within these promises."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from paywitness.core import policy_defaults


class OperationKind(StrEnum):
    """How an operation moves money. `none` creates an object and moves nothing. `increment` raises the authorised
    amount. `reversal` voids or refunds, depending on the state of the payment."""

    moves_money: bool
    pays: bool  # whether it is a payment of an intent, of which at most one may succeed

    AUTHORIZATION = "authorization"
    SALE = "sale"
    CAPTURE = "capture"
    INCREMENT = "increment"
    REFUND = "refund"
    VOID = "void"
    REVERSAL = "reversal"
    PAYOUT = "payout"
    NONE = "none"

    def __init__(self, stored_value: str) -> None:
        self.moves_money = stored_value != "none"
        self.pays = stored_value in {"sale", "authorization"}


class ErrorsUnderKey(StrEnum):
    """Which responses the provider stores under a key beside a success, and so when a re-send is safe."""

    REPLAYED = "replayed"  # every executed response, 5xx too: a re-send is safe, but useless after a 5xx that we saw
    REEXECUTED = "reexecuted"  # it executes failed work again: a re-send is safe after a lost response and after a 5xx
    NOT_STORED = "not_stored"  # only successes: a lost response may have been an unstored 5xx after the effect
    UNKNOWN = "unknown"


class FieldKind(StrEnum):
    HEADER = "header"
    BODY = "body"
    PATH = "path"
    CONST = "const"


@dataclass(frozen=True, slots=True)
class FieldRef:
    """The place of a value: `header:Idempotency-Key`, `body:metadata.order_id`, `path:charge`, `const:main`."""

    kind: FieldKind
    name: str  # header name, dotted body path, path parameter, or the constant itself
    written: str = field(init=False, repr=False, compare=False)  # as policies write it
    header_key: bytes = field(init=False, repr=False, compare=False)  # a header's name as calls keep it

    def __post_init__(self) -> None:
        object.__setattr__(self, "written", f"{self.kind}:{self.name}")
        is_header = self.kind is FieldKind.HEADER
        object.__setattr__(self, "header_key", self.name.lower().encode("latin-1") if is_header else b"")

    def __str__(self) -> str:
        return self.written


@dataclass(frozen=True, slots=True)
class ProviderContract:
    """The provider's promises for one operation: its key, how long it remembers the key, which inquiries it answers."""

    send_as: FieldRef | None  # the place of the idempotency key in a request; None: the provider has no such key
    window_s: float | None  # how long the provider remembers a key; None: not known, so a re-send is never safe
    errors_under_key: ErrorsUnderKey = ErrorsUnderKey.UNKNOWN
    max_length: int = policy_defaults.IDEMPOTENCY_MAX_LENGTH
    min_length: int = policy_defaults.IDEMPOTENCY_MIN_LENGTH
    characters: frozenset[str] | None = None  # of a key; None: every visible ASCII character
    key_space_is_account: bool = True  # False: the store is wider than the account, a client's own key never goes out
    supports_inquiry: bool = False
    webhook_expected: bool = False
    webhook_hints: bool = False  # an event proves nothing: it is a reason to inquire at once
    assumed: frozenset[str] = frozenset()  # names of facts that the policy assumes; the provider does not document them

    # whether the same key twice is one effect, at least for a while
    dedupes: bool = field(init=False, repr=False, compare=False)
    # whether a request whose response was lost may be sent again under its key
    permits_resend: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        dedupes = self.send_as is not None and bool(self.window_s)
        keeps_errors = self.errors_under_key in {ErrorsUnderKey.REPLAYED, ErrorsUnderKey.REEXECUTED}
        object.__setattr__(self, "dedupes", dedupes)
        object.__setattr__(self, "permits_resend", dedupes and keeps_errors)

    @property
    def resend_until_s(self) -> float:
        """Age of the first send from which on a re-send is no longer safe."""
        if not self.dedupes or self.window_s is None:
            return 0.0
        return self.window_s * policy_defaults.WINDOW_SHARE_FOR_RESEND
