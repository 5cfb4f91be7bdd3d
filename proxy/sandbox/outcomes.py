"""Which source (card token, payment method) ends how: the table a person chooses business results from."""

from __future__ import annotations

import re
from dataclasses import dataclass

from proxy.sandbox.charge import Status
from proxy.sandbox.payout import PayoutStatus

DECLINING_TOKENS = {
    "tok_insufficient_funds": "insufficient_funds",
    "tok_stolen_card": "stolen_card",
    "tok_expired_card": "expired_card",
    "tok_fraudulent": "fraudulent",
}
PAYING_TOKENS = ("tok_ok", "tok_visa", "tok_mastercard", "tok_amex")
TOKENS_HELP = {
    "tok_ok": "paid",
    **{token: f"402, declined with {code}" for token, code in DECLINING_TOKENS.items()},
    "tok_declined_<code>": "402, declined with <code>",
    "tok_failed_200_<code>": "200, status failed with <code>",
    "tok_processing": "200, status processing: accepted, not final (an effect)",
    "tok_3ds": "200, status requires_action (no effect until it is settled)",
}

DESTINATIONS_HELP = {
    "dest_ok": "paid at once; so is every destination that does not begin with dest_",
    "dest_pending": "200, status pending: accepted, not final (an effect)",
    "dest_failed_<code>": "200, status failed with <code>",
    "dest_refused_<code>": "402, refused with <code>",
}

# Stripe's test methods: pm_card_chargeDeclinedStolenCard, pm_card_visa_chargeDeclinedInsufficientFunds, ...
STRIPE_DECLINE = re.compile(r"\A(?:pm|tok)_(?:card_)?(?:[a-z]+_)?chargeDeclined([A-Za-z]*)\Z")
STRIPE_ACTION = re.compile(r"\Apm_card_(?:authenticationRequired\w*|threeDSecure\w*Required)\Z")


class UnknownToken(ValueError):
    """A token of ours that we do not know: most likely a typing error, which must not pay."""


@dataclass(frozen=True, slots=True)
class Outcome:
    status: Status
    code: str | None = None
    quiet: bool = False
    """A decline that is told in a 200."""


PAID = Outcome(Status.SUCCEEDED)


def outcome_of(source: str) -> Outcome:
    if source in PAYING_TOKENS:
        return PAID
    if source in DECLINING_TOKENS:
        return Outcome(Status.FAILED, DECLINING_TOKENS[source])
    if source == "tok_processing":
        return Outcome(Status.PROCESSING)
    if source == "tok_3ds" or STRIPE_ACTION.match(source):
        return Outcome(Status.REQUIRES_ACTION)
    if source.startswith("tok_failed_200_"):
        return Outcome(Status.FAILED, source.removeprefix("tok_failed_200_") or "generic_decline", quiet=True)
    if source.startswith("tok_declined_"):
        return Outcome(Status.FAILED, source.removeprefix("tok_declined_") or "generic_decline")
    if declined := STRIPE_DECLINE.match(source):
        return Outcome(Status.FAILED, snake_case(declined.group(1)) or "generic_decline")
    if source.startswith("tok_"):
        raise UnknownToken(f"{source!r} is none of {', '.join(TOKENS_HELP)}")
    return PAID


@dataclass(frozen=True, slots=True)
class PayoutOutcome:
    status: PayoutStatus
    code: str | None = None
    quiet: bool = True
    """A failure that is told in a 200."""


def payout_outcome_of(destination: str) -> PayoutOutcome:
    if destination == "dest_pending":
        return PayoutOutcome(PayoutStatus.PENDING)
    for prefix, quiet in (("dest_failed", True), ("dest_refused", False)):
        if destination == prefix or destination.startswith(f"{prefix}_"):
            code = destination.removeprefix(prefix).removeprefix("_") or "account_closed"
            return PayoutOutcome(PayoutStatus.FAILED, code, quiet)
    if destination.startswith("dest_") and destination != "dest_ok":
        raise UnknownToken(f"{destination!r} is none of {', '.join(DESTINATIONS_HELP)}")
    return PayoutOutcome(PayoutStatus.PAID)


def snake_case(words: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", words).lower()
