"""Classification: from the evidence of one attempt to a reading and an effect. Pure; the fall-through is doubt.

Order: what the wire says (not sent, lost), then the policy's `classify` rows, then the `answers` rows of the
operation's object, then the built-in rules for HTTP status codes. Rows that test the body come first in their table
because the policy's author put them there: a 200 may be a decline, a 409 a success. An expression that raises does not
match. A page that is not written in the API's language (HTML in front of a JSON API) is a gateway's: doubt with any
status, unless a row recognises this very page by status and header. A success that does not fit what was asked for is
doubt. A row marked `observe` is asked like the others, and passed over: the classification tells that it would have
matched, and is the one it would be without that row.

A row reads a success only from a response that shows something, unless it names its status: an empty body, `{}` and
`null` show nothing. An `answers` row without a status reads one only from a 2xx. An error that looks like a success is
doubt, because HTTP says one thing and the body another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from paywitness.core import policy_defaults
from paywitness.core.bodies.tree import Encoding, Tree, decode_response
from paywitness.core.errors import BodyError, BodyOverBound, MoneyError
from paywitness.core.evidence import Evidence, Response, WireFault
from paywitness.core.money import Money, Unit, read_money
from paywitness.core.record import record
from paywitness.core.result import (
    DEFAULT_EFFECTS,
    DENIALS,
    DOES_NOT_FIT,
    PROVIDER_SAID_NO,
    Advice,
    Classification,
    Effect,
    ResultClass,
    ShadowMatch,
)

_REFERENCE_LENGTH_MAX = 255
SUCCESS_IN_ERROR = "success_in_error_status"  # the rule's name of an error whose body a row would read as a success
NOTHING_SHOWN: tuple[Tree, ...] = (None, {}, [], "")
UNREAD_SUCCESS = "unrecognised_2xx"  # the rule's name of a 2xx that was read whole, fits, and is known to no row
FOREIGN_PAGE = "foreign_page"  # the rule's name of a page that is not written in the API's language
# A compiled JMESPath: the value that it finds, or None also if it cannot be read. It never raises.
Expression = Callable[[Tree], Tree]
Condition = Callable[[Tree], bool]  # an expression that is read as true or false


@record
class ResponseRule:
    """One row of `classify` or `answers`. Every condition given must hold."""

    name: str  # classify[2], answers.charge[0]: what the log, the metric and `explain` call it
    result_class: ResultClass | None = None  # `as`
    effect: Effect | None = None
    status_codes: frozenset[int] | None = None
    headers: tuple[tuple[str, str], ...] = ()  # lower-case name, value
    when: Condition | None = None
    code: Expression | None = None
    table: Mapping[str, ResultClass] | None = None
    otherwise: ResultClass | None = None  # for a code that the table does not list; without it the row does not match
    stored: bool = True  # False: the provider does not keep such an answer under the key
    observe: bool = False  # only watched: passed over where it matches
    advice: Advice | None = None  # what the customer may be told; a code's own advice comes before it
    fallback: bool = False  # a refusal that it reads may be made by another route

    @property
    def result_classes(self) -> frozenset[ResultClass]:
        """Everything that it can say."""
        result_classes = {self.result_class, self.otherwise, *(self.table or {}).values()}
        return frozenset(result_class for result_class in result_classes if result_class is not None)

    @property
    def recognises_page(self) -> bool:
        """Whether it can recognise a page that somebody in front of the provider wrote."""
        return self.status_codes is not None and bool(self.headers)

    @property
    def tests_body(self) -> bool:
        return self.when is not None or self.code is not None

    @property
    def reads_empty_body(self) -> bool:
        """Whether it may speak of a response without a body. `!error` holds for an empty 502 too: a row that reads the
        body must then say which status it means."""
        return self.status_codes is not None or not self.tests_body

    def says_done(self, result_class: ResultClass) -> bool:
        """Whether this of its readings says that money moved."""
        return (self.effect or DEFAULT_EFFECTS[result_class]) is Effect.DONE

    def read(self, response: Response, tree: Tree) -> ResultClass | None:
        """What the row says of this response, or None where it does not match."""
        if self.status_codes is not None and response.status_code not in self.status_codes:
            return None
        if self.headers and any(not _same_text(response.header(name), value) for name, value in self.headers):
            return None
        if self.when is not None and not self.when(tree):
            return None
        if self.code is None:
            return self.result_class
        return (self.table or {}).get(self.code_in(tree)) or self.otherwise

    def code_in(self, tree: Tree) -> str:
        """The code that the row looks up; empty if there is none."""
        found = self.code(tree) if self.code is not None else None
        return str(found) if isinstance(found, (str, int)) else ""


@record
class ResponseMatcher:
    """Where an answer shows what was asked for, so that somebody else's answer is not taken for ours."""

    amount: Expression | None = None
    unit: Unit = Unit.MINOR
    currency: Expression | None = None
    stamp: Expression | None = None


@record
class ExpectedPayment:
    """What the request asked for, as far as the answer can be held against it."""

    money: Money | None = None
    stamp: str | None = None


def classify(evidence: Evidence, rules: ClassifyRules, expected: ExpectedPayment = ExpectedPayment()) -> Classification:
    """What this evidence means. Anything unforeseen is an unknown outcome whose effect is possible."""
    return read_response(evidence, rules, expected)[0]


def read_response(
    evidence: Evidence, rules: ClassifyRules, expected: ExpectedPayment = ExpectedPayment()
) -> tuple[Classification, Tree]:
    """What this evidence means, and the body of the response as it was decoded."""
    response = evidence.response
    if response is None:
        return _without_response(evidence), None
    try:
        tree, readable = decode_response(response.body, response.header("Content-Encoding"), rules.encoding), True
    except BodyOverBound:
        # As with an answer that is larger than its bound: what it says is not known, whatever the status code is.
        return Classification.of(ResultClass.UNKNOWN_OUTCOME, "answer_over_bound", lost=True), None
    except BodyError:
        tree, readable = None, False
    if evidence.repeats_previous and reference_in(rules, tree) is not None:
        # Two calls do not get one reference: a stray copy, and the call's own answer is still to come.
        return Classification.of(ResultClass.UNKNOWN_OUTCOME, "answer_of_another_call", lost=True), None
    return _by_response(response, tree, rules, expected, readable=readable), tree


def _by_response(
    response: Response, tree: Tree, rules: ClassifyRules, expected: ExpectedPayment, *, readable: bool
) -> Classification:
    if response.close_delimited and not readable:
        # Perhaps only its beginning: what the rest of it would have said is not known, whatever the status code is.
        return Classification.of(ResultClass.UNKNOWN_OUTCOME, "answer_cut_off", lost=True)
    # What an API writes in its own language is no page, and need not be looked at.
    looks_foreign = not readable or (isinstance(tree, dict) and "html" in tree)
    foreign = looks_foreign and is_foreign_page(response, tree, readable=readable)
    by_row, observed = _by_rules(rules, response, tree, foreign=foreign)
    by_row = by_row or _success_in_error(rules, response, tree, foreign=foreign)
    found = by_row or _by_page_or_status(response.status_code, rules, readable=readable, foreign=foreign)
    if observed is not None:
        found = replace(found, shadow_match=observed)
    # Also a result without effect can show a payment, and that must be the one that was asked for.
    if found.effect is Effect.NONE and found.result_class not in PROVIDER_SAID_NO:
        return found  # it was turned away: there is no payment that it could show
    if not matches_expected(rules.fit, tree, expected):
        return replace(unfit(rules.fit, tree, expected), shadow_match=observed)
    # An error that no row knows may name itself where a payment would stand: asking for that would find nothing.
    names_payment = by_row is not None or 200 <= response.status_code < 300
    if not names_payment or found.result_class in DENIALS:
        return found
    return replace(found, reference=name_at(rules.reference, tree))


def reference_in(rules: ClassifyRules, tree: Tree) -> str | None:
    """The provider's own name for the thing that an answer or an object shows."""
    return name_at(rules.reference, tree)


def name_at(expression: Expression | None, tree: Tree) -> str | None:
    """The name that an answer or an object shows at this place; None if it shows none there."""
    return reference_text(expression(tree)) if expression is not None else None


def was_executed(classification: Classification) -> bool:
    """Whether the provider let this credential act: it paid, accepted, declined, or asked the customer to act."""
    return classification.effect is Effect.DONE or classification.result_class in PROVIDER_SAID_NO


@record
class ClassifyRules:
    """Everything classification asks of a policy, for one operation."""

    rows: tuple[ResponseRule, ...] = ()
    answers: tuple[ResponseRule, ...] = ()
    reference: Expression | None = None
    fit: ResponseMatcher = ResponseMatcher()
    moves_money: bool = True
    encoding: Encoding = Encoding(policy_defaults.BODY)  # of requests, and so of answers
    advice_by_code: Mapping[str, Advice] | None = None

    def advice_of(self, row: ResponseRule, tree: Tree) -> Advice | None:
        """What the policy has the customer told about what the row has read; None: as the class says."""
        if not self.advice_by_code:
            return row.advice
        return self.advice_by_code.get(row.code_in(tree) if row.code is not None else "") or row.advice


def _without_response(evidence: Evidence) -> Classification:
    if not evidence.sent:
        return Classification.of(ResultClass.NETWORK_CONNECT_FAILURE, "not_sent")
    timeouts = {WireFault.FIRST_BYTE_TIMEOUT, WireFault.BODY_TIMEOUT, WireFault.WRITE_TIMEOUT}
    if evidence.fault in timeouts:
        return Classification.of(ResultClass.NETWORK_READ_TIMEOUT, "answer_timed_out", lost=True)
    return Classification.of(ResultClass.UNKNOWN_OUTCOME, "answer_lost", lost=True)


def tree_of(response: Response, encoding: Encoding) -> tuple[Tree, bool]:
    """The response's tree, and whether it could be read."""
    try:
        return decode_response(response.body, response.header("Content-Encoding"), encoding), True
    except BodyError:
        return None, False


def is_foreign_page(response: Response, tree: Tree, *, readable: bool) -> bool:
    """Whether the body is not written in the API's language: somebody in front of the provider wrote it, before or
    after the provider did its work. An empty body is nobody's page."""
    if not response.body.strip():
        return False
    return not readable or (isinstance(tree, dict) and list(tree) == ["html"])


def _by_rules(
    rules: ClassifyRules, response: Response, tree: Tree, *, foreign: bool
) -> tuple[Classification | None, ShadowMatch | None]:
    """What the first row that matches says, and the first of those only watched that would have come before it. A
    foreign page is read only by rows that name its status and a header: what it shows is no object of the provider."""
    observed: ShadowMatch | None = None
    status_code = response.status_code
    empty = not response.body.strip()
    may_be_unproven = tree in NOTHING_SHOWN or not 200 <= status_code < 300
    for row in (*rules.rows, *rules.answers):
        if row.status_codes is not None and status_code not in row.status_codes:
            continue  # most rows, for most answers: they need not be asked
        if (foreign and not row.recognises_page) or (empty and not row.reads_empty_body):
            continue
        result_class = row.read(response, tree)
        if result_class is None or (
            may_be_unproven and row.status_codes is None and _is_unproven(row, result_class, rules, tree)
        ):
            continue
        if row.observe:
            observed = observed or ShadowMatch(row.name, result_class)
            continue
        return Classification(
            result_class,
            row.effect or DEFAULT_EFFECTS[result_class],
            row.name,
            stored=row.stored,
            advice=rules.advice_of(row, tree),
            falls_back=row.fallback and not foreign,  # only the provider's own response is its refusal
        ), observed
    return None, observed


def _is_unproven(row: ResponseRule, result_class: ResultClass, rules: ClassifyRules, tree: Tree) -> bool:
    """Whether a row that names no status reads a success where none can be read: from nothing, or, by the rows of an
    object, from an error. Of a 2xx that shows something this is not asked."""
    return row.says_done(result_class) and (tree in NOTHING_SHOWN or row in rules.answers)


def _success_in_error(rules: ClassifyRules, response: Response, tree: Tree, *, foreign: bool) -> Classification | None:
    """The doubt about an error that HTTP counts as turned away, and whose body shows what is a success with a 2xx."""
    if foreign or tree in NOTHING_SHOWN or 200 <= response.status_code < 300:
        return None
    if _by_status(response.status_code, readable=True, kind_moves_money=rules.moves_money).effect is not Effect.NONE:
        return None
    # Whatever else a row of the object could say of it would have been read already.
    looks_done = any(row.status_codes is None and not row.observe and row.read(response, tree) for row in rules.answers)
    return Classification.of(ResultClass.UNKNOWN_OUTCOME, SUCCESS_IN_ERROR) if looks_done else None


# Not 406: frameworks find out that they cannot write the answer after they have done the work.
_VALIDATION_CODES = frozenset({400, 404, 405, 410, 411, 413, 414, 415, 417, 422, 431})
_AUTHENTICATION_CODES = frozenset({401, 403, 407})


def _by_page_or_status(status_code: int, rules: ClassifyRules, *, readable: bool, foreign: bool) -> Classification:
    """What no row reads. A 2xx or 5xx that cannot be read is doubt already, under its own name."""
    if foreign and not 200 <= status_code < 300 and status_code < 500:
        return Classification.of(ResultClass.UNKNOWN_OUTCOME, FOREIGN_PAGE, lost=True)
    return _by_status(status_code, readable=readable and not foreign, kind_moves_money=rules.moves_money)


def _by_status(status_code: int, *, readable: bool, kind_moves_money: bool) -> Classification:
    """The built-in rules. Only what HTTP itself says was turned away counts as without effect."""
    name = f"http_{status_code}"
    if 200 <= status_code < 300:
        if not readable:
            # Truncated, garbled, or no answer at all behind a success: as good as lost.
            return Classification.of(ResultClass.UNKNOWN_OUTCOME, "unreadable_2xx", lost=True)
        if not kind_moves_money:
            return Classification.of(ResultClass.SUCCEEDED, name)
        return Classification.of(ResultClass.UNKNOWN_OUTCOME, UNREAD_SUCCESS)
    if status_code == 402:
        return Classification.of(
            ResultClass.ISSUER_HARD_DECLINE, name
        )  # a decline nobody listed: the one never retried
    if status_code == 429:
        return Classification.of(ResultClass.RATE_LIMITED, name)
    if status_code in _AUTHENTICATION_CODES:
        return Classification.of(ResultClass.AUTHENTICATION_ERROR, name)
    if status_code in _VALIDATION_CODES:
        return Classification.of(ResultClass.VALIDATION_ERROR, name)
    # A gateway's page in place of the provider's own error: the provider's answer, if there was one, is lost.
    lost = status_code >= 500 and not readable
    if status_code in {408, 504}:
        return Classification.of(ResultClass.PROVIDER_TIMEOUT, name, lost=lost)
    if status_code >= 500:
        return Classification.of(ResultClass.TEMPORARY_PROVIDER_ERROR, name, lost=lost)
    return Classification.of(ResultClass.UNKNOWN_OUTCOME, name)


def matches_expected(fit: ResponseMatcher, tree: Tree, expected: ExpectedPayment) -> bool:
    """Whether what an answer shows is what was asked for. What it does not show cannot contradict."""
    stamp = fit.stamp(tree) if fit.stamp is not None else None
    if stamp is not None and expected.stamp is not None and stamp != expected.stamp:
        return False
    money = expected.money
    if money is None:
        return True
    currency = fit.currency(tree) if fit.currency is not None else None
    for part in currency if isinstance(currency, list) else () if currency is None else (currency,):
        if str(part).upper() != money.currency:
            return False
    amount = fit.amount(tree) if fit.amount is not None else None
    if amount is None or amount == []:
        return True
    if type(amount) is int and fit.unit is Unit.MINOR:
        return amount == money.minor_units
    try:
        return read_money(amount, money.currency, fit.unit) == money
    except MoneyError:
        return False


def unfit(fit: ResponseMatcher, tree: Tree, expected: ExpectedPayment) -> Classification:
    """The doubt about what does not match what was asked for, with the amount that it shows instead."""
    found = Classification.of(ResultClass.UNKNOWN_OUTCOME, DOES_NOT_FIT)
    amount = fit.amount(tree) if fit.amount is not None else None
    if amount is None or expected.money is None:
        return found
    currency = fit.currency(tree) if fit.currency is not None else None
    try:
        money = read_money(amount, expected.money.currency if currency is None else currency, fit.unit)
    except MoneyError:
        return found
    return replace(found, shown_money=money)


def is_false(value: Tree) -> bool:
    """JMESPath's truth: false, null, "", [] and {} are false; 0 is true."""
    return value is False or value in NOTHING_SHOWN


def reference_text(value: Tree) -> str | None:
    """A name that can be kept, shown and asked for. JSON may carry halves of characters, which no journal takes."""
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        return None
    text = str(value)
    return text if text.isprintable() and 0 < len(text) <= _REFERENCE_LENGTH_MAX else None


def _same_text(found: str | None, wanted: str) -> bool:
    return found is not None and found.strip().lower() == wanted.lower()
