"""Earlier rules for accounts: if a policy changes how it finds the account, earlier operations must still be found.

The journal keeps each provider's rules in the order in which they were in force. If a call has another identity under
an earlier rule, it is searched for under that rule first. If the journal knows its key, its guard or the payment that
it acts on, the call continues under the identity that it had then. That costs one round trip for each earlier rule,
until the last operation of that rule is forgotten, and the rule with it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace

from paywitness.clock import Clock
from paywitness.core.account_choice import under_earlier_rules
from paywitness.core.account_rules import EarlierAccount, EarlierRule
from paywitness.core.claim import ClaimRequest, ClaimVerdict
from paywitness.core.errors import PolicyError
from paywitness.core.identity import credential_claim, value_in
from paywitness.core.policy import Policy, Provider
from paywitness.core.provider_contract import FieldKind, FieldRef
from paywitness.core.recognise import RecognisedCall, recognise_under
from paywitness.engine.calls.context import CallContext
from paywitness.journal.base import Journal, LedgerRow
from paywitness.policy.book import PolicyBook, load_content
from paywitness.secrets import Vault

_RULES_MAX = 8  # of one provider; operations from before more edits than that are not found


def _row_key(provider: Provider) -> str:
    return f"r:{provider.key_name or provider.name}"


async def with_earlier_rules(journal: Journal, book: PolicyBook) -> PolicyBook:
    """The book whose policies know the earlier rules for accounts. The rules are stored before the book's own
    revisions."""
    providers = []
    for provider in book.providers.values():
        known = await _known_rules(journal, provider)
        providers.append(_with_rules(provider, tuple(rule for rule in known if rule != _rule_of(provider))))
    return PolicyBook.of(providers)


async def _known_rules(journal: Journal, provider: Provider) -> tuple[EarlierRule, ...]:
    """The provider's rules, newest first. Today's rule is stored among them."""
    key = _row_key(provider)
    [row] = await journal.ledger_rows((key,))
    rules = list(_rules_from_text(row.text)) if row is not None else await _rule_before_rows(journal, provider)
    today = _rule_of(provider)
    wanted = (today, *(rule for rule in rules if rule != today))[:_RULES_MAX]
    if row is None or wanted != tuple(rules):
        version = 1 if row is None else row.version + 1
        # If the write fails, another sidecar was faster.
        await journal.write_ledger_rows((LedgerRow(key, version, _rules_to_text(wanted)),))
    return wanted


async def _rule_before_rows(journal: Journal, provider: Provider) -> list[EarlierRule]:
    """The rule of the last revision in force, for a journal that an earlier release wrote."""
    for name in dict.fromkeys((provider.name, provider.key_name)):
        stored = await journal.latest_revision(name) if name else None
        if stored is None:
            continue
        try:
            return [_rule_of(load_content(stored.content.encode(), f"revision {stored.revision}"))]
        except PolicyError:
            continue  # a version with another file format wrote it
    return []


def _rule_of(provider: Provider) -> EarlierRule:
    many = any(policy.accounts.many for policy in provider.policies)
    named = provider.policies[0].accounts.named if provider.policies else ()
    accounts = tuple(EarlierAccount(each.name, each.merchant, each.owner, each.told_by) for each in named)
    return EarlierRule(provider.account, str(provider.identity.get("merchant", "")), many, accounts)


def _rules_to_text(rules: Iterable[EarlierRule]) -> str:
    value = [
        {
            "account": [str(place) for place in rule.account],
            "merchant": rule.merchant,
            "many": rule.many,
            "named": [[each.name, each.merchant, each.owner, sorted(each.told_by)] for each in rule.named],
        }
        for rule in rules
    ]
    return json.dumps({"rules": value}, separators=(",", ":"))


def _rules_from_text(text: str) -> tuple[EarlierRule, ...]:
    rules = []
    for each in json.loads(text)["rules"]:
        places = [place.partition(":") for place in each["account"]]
        if all(kind in set(FieldKind) for kind, _, _ in places):
            account = tuple(FieldRef(FieldKind(kind), name) for kind, _, name in places)
            named = tuple(
                EarlierAccount(name, merchant, owner, frozenset(told_by))
                for name, merchant, owner, told_by in each.get("named", ())
            )
            rules.append(EarlierRule(account, each["merchant"], bool(each.get("many")), named))
    return tuple(rules)


def _with_rules(provider: Provider, earlier: tuple[EarlierRule, ...]) -> Provider:
    if not earlier:
        return provider
    policies = tuple(replace(each, accounts=replace(each.accounts, earlier=earlier)) for each in provider.policies)
    return replace(provider, policies=policies)


@dataclass(frozen=True, slots=True)
class EarlierIdentities:
    """Searches for calls under the identities that they had before."""

    journal: Journal
    vault: Vault
    clock: Clock

    async def adopt(self, context: CallContext) -> CallContext | None:
        """The call under the earlier identity that the journal knows, if there is one. None: the journal knows
        something there that may belong to another account, because the earlier rule did not tell the two accounts
        apart."""
        if not context.policy.accounts.earlier:
            return context
        parameters, secret = dict(context.parameters), self.vault.identity_secret
        for policy in under_earlier_rules(
            context.policy, context.call, context.tree, parameters, secret, context.owner
        ):
            recognised = self._recognised(context, policy)
            if recognised.identity.account == context.identity.account and policy.merchant == context.policy.merchant:
                continue
            if not await self._is_known(context, recognised):
                continue
            return None if _names_more(context, policy) else context.recognised_as(recognised, context.policy)
        return context

    def _recognised(self, context: CallContext, policy: Policy) -> RecognisedCall:
        client_key, secret = context.identity.client_key, self.vault.identity_secret
        parameters = dict(context.parameters)
        return recognise_under(policy, context.call, context.tree, parameters, secret, lambda: client_key)

    async def _is_known(self, context: CallContext, recognised: RecognisedCall) -> bool:
        fresh = recognised.fresh_operation(context.fresh.id, self.clock.now())
        today_guard, guard = context.identity.guard, fresh.guard
        if guard is not None and today_guard is not None and guard.value == today_guard.value:
            fresh = fresh.changed(guard=None)  # the same guard under either account: the claim checks it anyway
        request = ClaimRequest(
            fresh,
            context.token,
            permitted=False,
            lease_s=0.0,
            sealed_request=None,
            key_stem=recognised.identity.key_stem,
            payment=recognised.payment,
            credential=credential_claim(recognised.policy, recognised.identity),
        )
        claim = await self.journal.claim(request)
        if claim.verdict is ClaimVerdict.ANOTHER_OWNER:
            return False  # another owner's
        if claim.verdict is not ClaimVerdict.ABSENT or claim.operation is not None:
            return True
        acts_on, today = recognised.payment.acts_on, context.payment_claim.acts_on
        if acts_on is None or today is None or acts_on.key == today.key:
            return False
        then, now = await self.journal.ledger_rows((acts_on.key, today.key))
        return then is not None and now is None


def _names_more(context: CallContext, earlier: Policy) -> bool:
    """Whether the call names an account in a place that the earlier rule did not read."""
    added = [place for place in context.policy.account if place not in earlier.account]
    parameters = dict(context.parameters)
    return any(
        place.kind is not FieldKind.CONST and value_in(place, context.call, context.tree, parameters) for place in added
    )
