"""The rules without a clock or a socket, of money: amounts, payments and their movements, payouts; and what callers are
told."""

from __future__ import annotations

from tests.mutants.changes import mutant, swapped

_PAYMENTS = "core.payment_claims."
_CHANGES = "core.payment_changes."
_PAYOUTS = "core.payout."
_REPLY = "core.reply."

MONEY = (
    # --- amounts and payments
    mutant(
        "sum_of_two_currencies",
        "amounts in two currencies are added up",
        swapped("core.money._currency", "len(codes) != 1", "not codes"),
    ),
    mutant(
        "too_many_decimals_cut",
        "an amount with more decimals than its currency has is cut",
        swapped("core.money._minor_units", "minor != minor.to_integral_value()", "False"),
    ),
    mutant(
        "capture_beside_a_capture",
        "a second capture starts while the first one is in flight",
        swapped(
            _PAYMENTS + "_against",
            "in_flight and movement.kind in _SERIALISED and fresh.kind in _SERIALISED",
            "False",
        ),
    ),
    mutant(
        "void_of_an_unknown_capture",
        "a void starts while nobody knows whether a capture was made",
        swapped(_PAYMENTS + "_against", "_excludes(movement.kind, fresh.kind) and holder.state.in_doubt", "False"),
    ),
    mutant(
        "disputed_money_refunded",
        "what is disputed may be refunded too",
        swapped(
            _PAYMENTS + "_remaining",
            "difference(base, payment.refunded, payment.disputed)",
            "difference(base, payment.refunded)",
        ),
    ),
    mutant(
        "reserved_money_refunded",
        "what other refunds reserve may be refunded too",
        swapped(
            _PAYMENTS + "_remaining", "return difference(released, competing), released", "return released, released"
        ),
    ),
    mutant(
        "disputed_order_paid_again",
        "an order whose refunded payment is disputed counts as given back",
        swapped(_PAYMENTS + "hold_of_payment", "payment.given_back and not payment.disputed", "payment.given_back"),
    ),
    mutant(
        "negative_amount_makes_room",
        "a movement of a negative amount makes room for another one",
        swapped("core.payment.Payment.reserved_at_most", "max(0, movement.minor_units)", "movement.minor_units"),
    ),
    mutant(
        "refund_counted_twice",
        "a refund that is reserved here and shown by the provider is counted twice",
        swapped(_CHANGES + "_without_open", "total - open_amount", "total"),
    ),
    mutant(
        "returned_refund_stays",
        "a refund that bounced still counts as refunded",
        swapped(
            _CHANGES + "_returned",
            "replace(payment, refunded=difference(payment.refunded, amount), given_back=False)",
            "replace(payment, given_back=False)",
        ),
    ),
    mutant(
        "anybodys_movement_is_ours",
        "a capture that somebody else made is taken for ours",
        swapped("core.payment_evidence.proves_movement", "total < before + amount", "False"),
    ),
    mutant(
        "negative_payout_counted",
        "a payout below zero gives back what others have spent of the cap",
        swapped("core.payout_claims._why_uncountable", "money.minor_units < 0", "False"),
    ),
    mutant(
        "cap_reached_by_one_more",
        "a payout may exceed its cap by one unit",
        swapped(
            _PAYOUTS + "over_cap",
            "money is None or spent + money.minor_units > cap.amount.minor_units",
            "money is None or spent + money.minor_units > cap.amount.minor_units + 1",
        ),
    ),
    mutant(
        "approval_for_any_amount",
        "an approval holds for another amount too",
        swapped(
            "core.payout_claims._approval_terms",
            "(provider, operation, identity.account, identity.fingerprint, value, beneficiary, amount)",
            "(provider, operation, identity.account, value, beneficiary)",
        ),
    ),
    mutant(
        "approval_never_lapses",
        "an approval that nobody used holds for ever",
        swapped(
            _PAYOUTS + "Approval.status",
            "ApprovalStatus.APPROVED if now - self.approved_at < self.valid_s else ApprovalStatus.LAPSED",
            "ApprovalStatus.APPROVED",
        ),
    ),
    mutant(
        "released_in_doubt",
        "a payout whose doubt ended without effect is announced as released",
        swapped(
            _PAYOUTS + "payout_status",
            "before.state in _UNDOUBTED and (not before.doubt) and one_step and (not told_by_others) "
            "and (after.incident is None)",
            "one_step and not told_by_others and after.incident is None",
        ),
    ),
    # --- what callers are told
    mutant(
        "failure_of_an_incident_told",
        "a customer may pay again although an incident is open",
        swapped("core.advice.advice_for", "operation.incident is not None", "False"),
    ),
    mutant(
        "second_answer_told_for_the_first",
        "an answer to a re-send is passed on although the first attempt may have paid",
        swapped(
            _REPLY + "passes_on_unread",
            "operation.state.in_doubt and speaks_for_all and classification.rule == UNREAD_SUCCESS",
            "operation.state.in_doubt and classification.rule == UNREAD_SUCCESS",
        ),
    ),
    mutant(
        "unfit_answer_told",
        "an answer over another amount, or an error, is passed on",
        swapped(
            _REPLY + "passes_on_unread",
            "operation.state.in_doubt and speaks_for_all and classification.rule == UNREAD_SUCCESS",
            "operation.state.in_doubt and speaks_for_all",
        ),
    ),
    mutant(
        "object_of_a_failure_replayed",
        "the object of a payment that was given back is replayed under a 200",
        swapped(
            _REPLY + "replay_response",
            "operation.state is State.FAILED or operation.result_class in GIVEN_BACK",
            "operation.state is State.FAILED",
        ),
    ),
    mutant(
        "negative_remainder_shown",
        "what is left of an overdrawn payment is told as a negative amount",
        swapped(_REPLY + "limit_reply", "max(0, limit.remaining)", "limit.remaining"),
    ),
)
