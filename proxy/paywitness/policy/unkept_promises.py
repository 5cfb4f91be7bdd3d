"""What a policy says and cannot come to pass: warnings about one file, once all of it is read.

Each of these files loads, and does what it can. But whoever reads it, or its description by `policy check`, expects
more. A rule that an earlier one hides is found where rows are read (`block_parsers.response_rules`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from paywitness.core.classify import ResponseRule
from paywitness.core.policy import Policy
from paywitness.core.provider_contract import ErrorsUnderKey
from paywitness.core.result import ResultClass
from paywitness.core.retry import RetryRule
from paywitness.core.webhook_event import MatchKey, WebhookRules
from paywitness.policy.reading.document import MapNode, Node, TextNode
from paywitness.policy.reading.locations import operation_names
from paywitness.policy.reading.section import Section, SectionEntry

_FETCHES_LOST_ANSWER = frozenset({ErrorsUnderKey.REPLAYED, ErrorsUnderKey.REEXECUTED})


def warn_of_unkept_promises(file: Section, policies: tuple[Policy, ...], webhook: WebhookRules | None) -> None:
    entries = {entry.name: entry for entry in file.entries("operations")}
    moving = tuple(policy for policy in policies if policy.kind.moves_money)
    _warn_of_unknown_references(file, [each for each in moving if _needs_an_unknown_reference(each, webhook)], entries)
    _warn_of_lasting_pending(file, [each for each in moving if _stays_pending(each, webhook)], entries)
    _warn_of_uncompared_amounts(file, [each for each in moving if _compares_nothing(each, entries)], entries)
    _warn_of_cut_attempts(file, moving, entries)


def _warn(file: Section, policies: list[Policy], entries: dict[str, SectionEntry], key: str, text: str) -> None:
    """Tell it once, at the first operation, with the names of all."""
    if not policies:
        return
    first = entries[policies[0].operation]
    node = _under(first.node, key)
    named = operation_names(policy.operation for policy in policies)
    location = node.location if node is not None else first.location
    file.problems.warn(location, f"{first.path}.{key}", text.replace("{named}", named))


# --- An inquiry by a reference that nobody has


def needs_answer_first(policy: Policy) -> bool:
    """Whether nobody can be asked before an answer or an event has shown the provider's reference."""
    return bool(policy.inquiries) and all(inquiry.needs_reference for inquiry in policy.inquiries)


def _needs_an_unknown_reference(policy: Policy, webhook: WebhookRules | None) -> bool:
    contract = policy.contract
    resends = contract.dedupes and contract.errors_under_key in _FETCHES_LOST_ANSWER and policy.resolve.resend_for_s > 0
    finds = {key for key, _ in webhook.find} if webhook is not None else set()
    told = contract.webhook_expected and bool(finds - {MatchKey.REFERENCE})
    return needs_answer_first(policy) and not resends and not told


def _warn_of_unknown_references(file: Section, policies: list[Policy], entries: dict[str, SectionEntry]) -> None:
    _warn(
        file,
        policies,
        entries,
        "ask",
        "needs the provider's reference, which nobody has if the first answer is lost, and neither a re-send nor an "
        "event brings it: {named} could not be asked about; look for {operation_id}, {provider_key} or a field of the "
        "request",
    )


# --- A pending that never ends


def _stays_pending(policy: Policy, webhook: WebhookRules | None) -> bool:
    """Whether it may be accepted, is looked at later, and no later look can read that it succeeded. One that is never
    looked at is described as "a person decides at once", which is true."""
    if not _reads(ResultClass.PENDING, (*policy.classify.rows, *policy.classify.answers)):
        return False
    later: list[ResponseRule] = [row for inquiry in policy.inquiries for row in inquiry.answers]
    told = webhook is not None and policy.contract.webhook_expected
    if told and webhook is not None:
        later += [*webhook.read, *(row for rows in webhook.answers.values() for row in rows)]
    return bool(policy.inquiries or told) and not _reads(ResultClass.SUCCEEDED, later)


def _reads(result_class: ResultClass, rows: Iterable[ResponseRule]) -> bool:
    return any(result_class in row.result_classes and not row.observe for row in rows)


def _warn_of_lasting_pending(file: Section, policies: list[Policy], entries: dict[str, SectionEntry]) -> None:
    _warn(
        file,
        policies,
        entries,
        "answer",
        "reads 'pending', and no row by which inquiries or events are read says 'succeeded': {named} would stay "
        "pending until a person ends it",
    )


# --- An answer that is held against nothing


def _compares_nothing(policy: Policy, entries: dict[str, SectionEntry]) -> bool:
    return policy.amount is not None and _under(entries[policy.operation].node, "fits") is None


def _warn_of_uncompared_amounts(file: Section, policies: list[Policy], entries: dict[str, SectionEntry]) -> None:
    _warn(
        file,
        policies,
        entries,
        "fits",
        "found nothing in {named}: an answer that shows another amount would count as this payment's; say where the "
        "answer shows the amount, or 'none' if it shows none",
    )


# --- Attempts that the budget of an intent cuts


def _warn_of_cut_attempts(file: Section, policies: tuple[Policy, ...], entries: dict[str, SectionEntry]) -> None:
    with_intent = [policy for policy in policies if policy.kind.pays and policy.intent is not None]
    places = [("retry", file.node("retry"), with_intent)]
    for policy in with_intent:
        entry = entries[policy.operation]
        places.append((f"{entry.path}.retry", _under(entry.node, "retry"), [policy]))
    for path, retry, concerned in places:
        for name, attempts in _stated_attempts(retry):
            cut = [each for each in concerned if _is_cut(each, name, attempts.text)]
            if cut:
                retries = cut[0].budget.per_intent
                file.problems.warn(
                    attempts.location,
                    f"{path}.{name}.attempts",
                    f"found {attempts.text}, of which {operation_names(each.operation for each in cut)} can make "
                    f"{retries + 1}: 'budget.per_intent' allows {retries} retries of one purchase",
                )


def _stated_attempts(retry: Node | None) -> Iterator[tuple[str, TextNode]]:
    for name, rule in retry.entries.items() if isinstance(retry, MapNode) else ():
        attempts = _under(rule, "attempts")
        if isinstance(attempts, TextNode):
            yield name, attempts


def _is_cut(policy: Policy, name: str, attempts: str) -> bool:
    rule: RetryRule = policy.retry_default if name == "default" else policy.retry_rule(ResultClass(name))
    return rule.attempts == int(attempts) > policy.budget.per_intent + 1


def _under(node: Node | None, key: str) -> Node | None:
    return node.entries.get(key) if isinstance(node, MapNode) else None
