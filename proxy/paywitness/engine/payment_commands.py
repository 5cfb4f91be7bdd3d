"""Commands of an operator on a payment: adopt one that did not come through us, declare that nobody has paid it, and
state a number of its balance.

A payment may have no operation of ours. So the journal records the actor and the reason in a row of its own, beside the
payment and in the same step. Nothing here moves money. Adopting sends one inquiry, which is safe to repeat.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from paywitness.clock import JournalClock
from paywitness.core.bodies.tree import Tree
from paywitness.core.call import Call, CallerOptions, Headers
from paywitness.core.classify import reference_text
from paywitness.core.consequences import WriteContext
from paywitness.core.errors import MoneyError, PaywitnessError, StaleWrite
from paywitness.core.external_evidence import EvidenceSource
from paywitness.core.identity import account_of, intent_guard_of
from paywitness.core.inquiry import FoundObject, Inquiry, InquiryReason
from paywitness.core.lifecycle import IncidentKind
from paywitness.core.money import Unit, read_money
from paywitness.core.operation import FindingKind, Guard, Operation, RepeatPaymentRule
from paywitness.core.payment import Payment, PaymentName, ShownBalance, name_key, payment_key
from paywitness.core.payment_corrections import (
    StatedBalance,
    adoption_refusal,
    after_adoption,
    after_statement,
    declared_unpaid,
    stated_words,
)
from paywitness.core.payment_evidence import shown_balance
from paywitness.core.payment_words import payment_sentences
from paywitness.core.policy import Policy, Provider
from paywitness.core.provider_contract import FieldKind
from paywitness.core.recognise import empty_operation
from paywitness.core.result import Classification, ResultClass
from paywitness.engine.calls.stored_messages import StoredRequest
from paywitness.engine.durability.journal_writer import change_of
from paywitness.engine.operator_commands import InvalidCommand, check_evidence, check_reference, validated_texts
from paywitness.engine.payment_lookup import PaymentLookup, PaymentView
from paywitness.engine.resolution.inquiries import InquiryClient, InquiryResult
from paywitness.journal.base import Journal, LedgerRow, OperationQuery
from paywitness.journal.ledger import (
    PaymentCommandEntry,
    commands_key,
    commands_row,
    intent_key,
    link_row,
    payment_from_row,
    payment_row,
)
from paywitness.journal.tombstones import remembered_row
from paywitness.policy.book import PolicyBook
from paywitness.randomness import Randomness
from paywitness.telemetry.emitter import Telemetry
from paywitness.telemetry.events import PaymentCommandRun

_WRITE_TRIES = 5
_ACCOUNT_ID = re.compile(r"[0-9a-f]{32}\Z")
_ADOPTABLE = frozenset({ResultClass.SUCCEEDED, ResultClass.REVERSED})
ADOPT, BALANCE, NOT_PAID = "adopt", "balance", "not-paid"
_DECLARED_UNPAID = "nobody has paid it"


class NotAdopted(PaywitnessError):
    """Nothing was changed. The text says why, and what to do."""


class PaymentKnown(PaywitnessError):
    """The name belongs to a payment or an operation that the journal knows."""


class NoSuchPayment(PaywitnessError):
    """The journal holds no such payment."""


class PaymentChanged(PaywitnessError):
    """Somebody was faster. Nothing was written; `view` is the payment as it is now."""

    def __init__(self, view: PaymentView) -> None:
        super().__init__(view.payment.id)
        self.view = view


@dataclass(frozen=True, slots=True)
class AdoptCommand:
    reference: str
    provider: str
    actor: str
    reason: str
    account: str = ""  # its name or its id; empty: the account of calls that name none


@dataclass(frozen=True, slots=True)
class BalanceCommand:
    """Amounts are texts in major units."""

    amounts: dict[str, str]  # by the name of the number
    actor: str
    reason: str
    evidence: str
    currency: str | None = None  # needed only if the payment's is not known


@dataclass(frozen=True, slots=True)
class NotPaidCommand:
    actor: str
    reason: str
    evidence: str


@dataclass(frozen=True, slots=True)
class _Account:
    id: str
    headers: Headers = ()  # the headers that name the account to the provider


@dataclass(frozen=True, slots=True)
class PaymentCommands:
    lookup: PaymentLookup
    journal: Journal
    inquiry_client: InquiryClient
    book: Callable[[], PolicyBook | None]
    journal_clock: JournalClock
    randomness: Randomness
    telemetry: Telemetry

    # --- adopt

    async def adopt(self, command: AdoptCommand) -> PaymentView:
        """Import a payment that did not come through us, as an inquiry shows it. Raises InvalidCommand, NotAdopted,
        PaymentKnown, JournalUnavailable."""
        actor, reason, _ = validated_texts(command.actor, command.reason, "")
        check_reference(command.reference)
        provider = self._provider(command.provider)
        policies = _policies_by_reference(provider)
        if not policies:
            raise NotAdopted(
                f"The policy of {provider.name} has no inquiry for a payment by its reference. Add one to 'ask' "
                "with 'needs: reference'."
            )
        account = await self._account(policies[0], command.account)
        await self._check_not_ours(provider, account, command.reference)
        asked = self._asked(policies[0], account, command.reference)
        found, policy = await self._inquire(asked, policies, account)
        classification = found.finding.classification
        if classification is None or classification.result_class not in _ADOPTABLE:
            raise NotAdopted(_not_found_words(command, found))
        names, shown = self._shown(asked, policy, classification, found.provider_object, command.reference)
        adopted = _Adoption(asked, names, shown, classification.result_class, actor, reason)
        return await self._write_adoption(adopted)

    def _provider(self, name: str) -> Provider:
        book = self.book()
        known = book.providers if book is not None else {}
        if name not in known:
            raise InvalidCommand(f"No policy names a provider {name[:64]!r}. Providers: {', '.join(known) or 'none'}.")
        if known[name].observe:
            raise InvalidCommand(f"{name} is in shadow mode: its payments are not recorded.")
        return known[name]

    async def _account(self, policy: Policy, named: str) -> _Account:
        """The account of the payment. The provider gets a named account in the header that the policy names. If calls
        have named the account in only one way, that way counts."""
        secret = self.lookup.identity_secret

        def account(headers: Headers, option: str | None = None) -> _Account:
            call = Call(policy.provider, "GET", "/", "", (), headers, b"", CallerOptions(account=option))
            return _Account(account_of(call, policy, None, {}, secret), headers)

        headers = [place.name for place in policy.account if place.kind is FieldKind.HEADER]
        unnamed = account(())
        if not named or named == unnamed.id:
            return unnamed
        if _ACCOUNT_ID.match(named):
            if headers:
                raise InvalidCommand(
                    f"Give the account by its name, as callers do in {' or '.join(headers)}: {policy.provider} must be "
                    "told whose payment it is."
                )
            return _Account(named)
        if not (named.isprintable() and named.isascii()):
            raise InvalidCommand("account is an id or a name, in printable ASCII.")
        possible = [account(((header.encode("latin-1"), named.encode("ascii")),)) for header in headers]
        possible.append(account((), named))
        seen = [each for each in possible if await self.journal.newest_credentials(each.id, 1)]
        if len(seen) > 1:
            raise InvalidCommand(f"Callers have named {named[:64]!r} in several ways: give the account's id.")
        return seen[0] if seen else possible[0]

    async def _check_not_ours(self, provider: Provider, account: _Account, reference: str) -> None:
        key = name_key(provider.key_name or provider.name, account.id, reference)
        [row] = await self.journal.ledger_rows((key,))
        refusal = adoption_refusal(payment_from_row(row)) if row is not None else None
        if refusal is not None:
            raise PaymentKnown(f"{refusal}.")
        found = await self.journal.find_operations(OperationQuery(provider=provider.name, reference=reference))
        ours = next((each for each in found if each.account == account.id and each.kind.pays), None)
        if ours is not None and row is None:
            raise PaymentKnown(f"It was made through here, by operation {ours.id}: `ops show {ours.id}` shows it.")

    def _asked(self, policy: Policy, account: _Account, reference: str) -> Operation:
        """The operation for the inquiry. It is never journalled, and only its reference is known. Its id becomes the id
        of the payment."""
        now = self.journal_clock.now()
        operation_id = self.randomness.operation_id(now)
        return empty_operation(operation_id, now).changed(
            provider=policy.provider,
            keyed_as=policy.names[0] if policy.names[0] != policy.provider else "",
            operation=policy.operation,
            kind=policy.kind,
            account=account.id,
            revision=policy.revision,
            upstream=policy.upstream,
            unstamped=True,
            reference=reference,
            payment=operation_id,
        )

    async def _inquire(
        self, asked: Operation, policies: tuple[Policy, ...], account: _Account
    ) -> tuple[FoundObject, Policy]:
        """The result of the first inquiry that finds it; else that of the last one."""
        request = StoredRequest("GET", "/", account.headers, b"")
        result: InquiryResult | None = None
        for policy in policies:
            named = asked.changed(operation=policy.operation, kind=policy.kind)
            result = await self.inquiry_client.inquire(named, policy, request, InquiryReason.OPERATOR)
            if result.seen.finding.kind is FindingKind.HIT:
                return result.seen, policy
        if result is None:
            raise NotAdopted("There is no way to ask for it.")
        return result.seen, policies[-1]

    def _shown(
        self, asked: Operation, policy: Policy, classification: Classification, found: Tree, reference: str
    ) -> tuple[tuple[PaymentName, ...], ShownBalance]:
        """The values that the object shows of the payment, and its names. The time of the authorization is not known,
        so only a date in the object says when it expires."""
        rules = replace(policy.payment, authorization_expires_s=None)
        fit, now = policy.classify.fit, self.journal_clock.now()
        money = None
        if fit.amount is not None and fit.currency is not None:
            try:
                money = read_money(fit.amount(found), fit.currency(found), fit.unit)
            except MoneyError:
                money = None
        intent = self._intent(policy, asked.account, found)
        operation = asked.changed(operation=policy.operation, kind=policy.kind, money=money, object_intent=intent)
        shown = shown_balance(
            operation, replace(policy, payment=rules), classification, found, now=now
        ) or ShownBalance(intent=intent)
        if shown.names and all(name.name != reference for name in shown.names):
            raise NotAdopted(
                f"{policy.provider} answered with another object, {shown.names[0].name}. Give its own reference."
            )
        own = PaymentName(reference, name_key(policy.names[0] or policy.provider, asked.account, reference))
        return tuple(dict.fromkeys((own, *shown.names))), shown

    def _intent(self, policy: Policy, account: str, found: Tree) -> Guard | None:
        """The purchase that the object shows, at the place that a step of the provider's policy names."""
        steps = self._provider(policy.provider).policies
        places = [each.payment.intent_at for each in steps if each.payment.intent_at is not None]
        shown = (reference_text(place(found)) for place in places)
        intent = next((each for each in shown if each is not None), None)
        if intent is None:
            return None
        return intent_guard_of(policy, account, intent, self.lookup.identity_secret)

    async def _write_adoption(self, adoption: _Adoption) -> PaymentView:
        for _ in range(_WRITE_TRIES):
            rows = await self.journal.ledger_rows(tuple(name.key for name in adoption.names))
            known = {row.key: row for row in rows if row is not None}
            if len(known) > 1:
                raise PaymentKnown(f"Its names belong to several payments here: {', '.join(sorted(known))}.")
            before = next(iter(known.values()), None)
            payment = adoption.applied_to(payment_from_row(before) if before is not None else None)
            links = [
                link_row(name.key, payment.id) for name, row in zip(adoption.names, rows, strict=True) if row is None
            ]
            entry = PaymentCommandEntry(
                self.journal_clock.now(), adoption.actor, ADOPT, adoption.reason, "", payment_sentences(payment)
            )
            written = [payment_row(payment, before), *links, *await self._kept_rows(payment, adoption.asked)]
            if await self._write(payment, entry, written):
                return await self._view(payment.id)
        raise NotAdopted("Others change this payment again and again. Try it later.")

    async def _kept_rows(self, payment: Payment, asked: Operation) -> list[LedgerRow]:
        """The row that prevents a second payment of an adopted payment's intent, since no operation holds it."""
        intent = payment.intent
        if intent is None or intent.after_success is not RepeatPaymentRule.BLOCK:
            return []
        [before] = await self.journal.ledger_rows((intent_key(intent.value),))
        return [remembered_row(asked.changed(guard=intent, payment=payment.id), before)]

    # --- not paid

    async def declare_unpaid(self, payment_id: str, command: NotPaidCommand, version: int | None = None) -> PaymentView:
        """Record that nobody has paid what the provider called "already done". The payment then no longer holds its
        intent, and its incident is closed. Raises InvalidCommand, CorrectionRefused, NoSuchPayment, PaymentChanged,
        JournalUnavailable."""
        actor, reason, evidence = validated_texts(command.actor, command.reason, command.evidence)
        check_evidence(command.evidence, "Only evidence shows that nobody has paid")
        row, before = await self._read(payment_id, version)
        payment = declared_unpaid(before)
        entry = PaymentCommandEntry(self.journal_clock.now(), actor, NOT_PAID, reason, evidence, _DECLARED_UNPAID)
        if not await self._write(payment, entry, [payment_row(payment, row)]):
            raise PaymentChanged(await self._view(payment_id))
        for step in payment.steps:
            await self._close_unverified(step, actor, reason)
        return await self._view(payment_id)

    async def _close_unverified(self, operation_id: str, actor: str, reason: str) -> None:
        """Close the incident that asked for a person. That frees nothing by itself, so if somebody changes the
        operation at the same time, the incident may stay open."""
        operation = await self.journal.read(operation_id)
        if operation is None or operation.incident != IncidentKind.UNVERIFIED_PAYMENT:
            return
        change = change_of(
            operation,
            operation.changed(incident=None),
            (),
            WriteContext(self.journal_clock.now()),
            source=EvidenceSource.OPERATOR,
            action=NOT_PAID,
            because="operator_not_paid",
            note=reason,
            actor=actor,
        )
        with suppress(StaleWrite):
            await self.journal.record(change)

    # --- balance

    async def state_balance(self, payment_id: str, command: BalanceCommand, version: int | None = None) -> PaymentView:
        """Set numbers of the balance to what a person has seen. Raises InvalidCommand, CorrectionRefused,
        NoSuchPayment, PaymentChanged, JournalUnavailable."""
        actor, reason, evidence = validated_texts(command.actor, command.reason, command.evidence)
        check_evidence(command.evidence, "A number needs evidence")
        row, before = await self._read(payment_id, version)
        currency = command.currency or before.currency
        if currency is None:
            raise InvalidCommand("The currency of the payment is not known: state it too.")
        stated, currency = _stated(command.amounts, currency)
        payment = after_statement(before, stated, currency)
        words = stated_words(stated, currency)
        entry = PaymentCommandEntry(self.journal_clock.now(), actor, BALANCE, reason, evidence, words)
        if not await self._write(payment, entry, [payment_row(payment, row)]):
            raise PaymentChanged(await self._view(payment_id))
        return await self._view(payment_id)

    async def _read(self, payment_id: str, version: int | None) -> tuple[LedgerRow, Payment]:
        """The payment as it is now, at the version that the operator has seen."""
        [row] = await self.journal.ledger_rows((payment_key(payment_id),))
        if row is None:
            raise NoSuchPayment(payment_id)
        if version is not None and version != row.version:
            raise PaymentChanged(await self._view(payment_id))
        return row, await self.lookup.current(payment_from_row(row))

    async def _write(self, payment: Payment, entry: PaymentCommandEntry, rows: list[LedgerRow]) -> bool:
        """Write the rows, together with the actor and the reason. False: somebody was faster."""
        [before] = await self.journal.ledger_rows((commands_key(payment.id),))
        written = await self.journal.write_ledger_rows((*rows, commands_row(payment.id, entry, before)))
        if written:
            self.telemetry.emit(
                PaymentCommandRun(payment.provider, payment.id, entry.action, entry.actor, entry.reason, entry.stated)
            )
        return written

    async def _view(self, payment_id: str) -> PaymentView:
        view = await self.lookup.by_id(payment_id)
        if view is None:
            raise NoSuchPayment(payment_id)
        return view


@dataclass(frozen=True, slots=True)
class _Adoption:
    """The values that an inquiry has shown of a payment that is adopted."""

    asked: Operation
    names: tuple[PaymentName, ...]  # the one that was asked for first
    shown: ShownBalance
    result_class: ResultClass
    actor: str
    reason: str

    def applied_to(self, known: Payment | None) -> Payment:
        """The payment after the adoption. Raises PaymentKnown if it became ours meanwhile."""
        refusal = adoption_refusal(known) if known is not None else None
        if refusal is not None:
            raise PaymentKnown(f"{refusal}.")
        asked = self.asked
        payment = known or Payment(asked.id, asked.provider, asked.account)
        return after_adoption(payment, replace(self.shown, names=self.names), self.result_class)


def _policies_by_reference(provider: Provider) -> tuple[Policy, ...]:
    """The provider's paying operations, each with the inquiries that need only a reference; each inquiry once."""
    policies: list[Policy] = []
    for policy in provider.policies:
        ways = tuple(each for each in policy.inquiries if policy.kind.pays and _is_by_reference(each))
        if ways and all(_targets(ways) != _targets(other.inquiries) for other in policies):
            policies.append(replace(policy, inquiries=ways))
    return tuple(policies)


def _targets(inquiries: tuple[Inquiry, ...]) -> list[object]:
    return [(each.method, each.path, each.query, each.body, each.answers) for each in inquiries]


def _is_by_reference(inquiry: Inquiry) -> bool:
    templates = [inquiry.path, *(value for _, value in inquiry.query), *(value for _, value in inquiry.body)]
    return {blank.head for template in templates for blank in template.placeholders} == {"reference"}


def _not_found_words(command: AdoptCommand, found: FoundObject) -> str:
    finding, where = found.finding, f"{command.reference} at {command.provider}"
    # gone: for an operator's reference it means "not found", because the provider never named it to us.
    if finding.kind is FindingKind.MISSED or found.gone:
        return (
            f"{command.provider} knows no {command.reference}. Check the reference and the account (--account), and "
            "that it names the payment, not a refund or a capture of it. Nothing was changed."
        )
    if finding.kind is FindingKind.HIT and finding.classification is not None:
        reading = finding.classification.result_class.replace("_", " ")
        return f"{where} reads as {reading}: there is no payment to adopt. Nothing was changed."
    status = f" (status {finding.status_code})" if finding.status_code is not None else ""
    return (
        f"Asking for {where} gave no clear answer{status}: {finding.detail or finding.kind}. Check the credential that "
        "the policy's 'credentials' names, and try again. Nothing was changed."
    )


def _stated(amounts: dict[str, str], currency: str) -> tuple[StatedBalance, str]:
    if not amounts:
        raise InvalidCommand("State at least one number: authorised, captured, refunded, voided or disputed.")
    numbers: dict[str, int] = {}
    for name, text in amounts.items():
        try:
            money = read_money(text, currency, Unit.MAJOR)
        except MoneyError as error:
            raise InvalidCommand(f"{name} is an amount in major units, such as 10.00: {error}.") from None
        numbers[name], currency = money.minor_units, money.currency
    return StatedBalance(**numbers), currency
