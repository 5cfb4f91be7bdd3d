"""Classification: from the evidence of one attempt to a reading and an effect. Pure; the fall-through is doubt.

Order: the evidence of the wire (not sent, lost), then the policy's `classify` rows, then the `answers` rows of the
operation's object, then the built-in rules for HTTP status codes. Within a table the author's order counts, so a row
that tests the body can come before one for the status: a 200 may be a decline, a 409 a success. An expression that
raises does not match. A page that is not in the API's format (HTML from a JSON API) comes from a gateway. It means
doubt with any status, unless a row recognises this very page by status and header. A success that does not fit the
request is doubt. A row marked `observe` is tested like the others, and then skipped: the classification reports that
the row would have matched, and is otherwise the same as without the row.

A row without a status reads a success only from a response that shows something: an empty body, `{}` and `null` show
nothing. An `answers` row without a status reads a success only from a 2xx. An error that looks like a success is doubt,
because its status and its body contradict each other.
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
SUCCESS_IN_ERROR = "success_in_error_status"  # rule name: an error whose body a row would read as a success
NOTHING_SHOWN: tuple[Tree, ...] = (None, {}, [], "")
UNREAD_SUCCESS = "unrecognised_2xx"  # rule name: a complete 2xx that fits the request, and that no row knows
FOREIGN_PAGE = "foreign_page"  # rule name: a page that is not in the API's format
# A compiled JMESPath. It returns the value that it finds, or None if there is none or it cannot be evaluated. It never
# raises.
Expression = Callable[[Tree], Tree]
Condition = Callable[[Tree], bool]  # an expression that is read as true or false


@record
class ResponseRule:
    """One row of `classify` or `answers`. Every condition in it must hold."""

    name: str  # classify[2], answers.charge[0]: its name in the log, the metric and `explain`
    result_class: ResultClass | None = None  # `as`
    effect: Effect | None = None
    status_codes: frozenset[int] | None = None
    headers: tuple[tuple[str, str], ...] = ()  # lower-case name, value
    when: Condition | None = None
    code: Expression | None = None
    table: Mapping[str, ResultClass] | None = None
    otherwise: ResultClass | None = None  # for a code that the table does not list; without it the row does not match
    stored: bool = True  # False: the provider does not keep such an answer under the key
    observe: bool = False  # tested but skipped: a match is only reported
    advice: Advice | None = None  # the advice for the customer; a code's own advice takes precedence
    fallback: bool = False  # after a refusal that it reads, another route may make the payment

    @property
    def result_classes(self) -> frozenset[ResultClass]:
        """All classes that the row can return."""
        result_classes = {self.result_class, self.otherwise, *(self.table or {}).values()}
        return frozenset(result_class for result_class in result_classes if result_class is not None)

    @property
    def recognises_page(self) -> bool:
        """Whether the row can recognise a page from a gateway in front of the provider."""
        return self.status_codes is not None and bool(self.headers)

    @property
    def tests_body(self) -> bool:
        return self.when is not None or self.code is not None

    @property
    def reads_empty_body(self) -> bool:
        """Whether the row may match a response without a body. `!error` holds for an empty 502 too, so a row that reads
        the body must name its status for that."""
        return self.status_codes is not None or not self.tests_body

    def says_done(self, result_class: ResultClass) -> bool:
        """Whether this class, as the row reads it, means that money has moved."""
        return (self.effect or DEFAULT_EFFECTS[result_class]) is Effect.DONE

    def read(self, response: Response, tree: Tree) -> ResultClass | None:
        """The row's class for this response, or None if it does not match."""
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
        """The code that the row looks up in its table; empty if there is none."""
        found = self.code(tree) if self.code is not None else None
        return str(found) if isinstance(found, (str, int)) else ""


@record
class ResponseMatcher:
    """Where a response shows the amount, currency and stamp of the request, so that another payment's response is not
    taken for ours."""

    amount: Expression | None = None
    unit: Unit = Unit.MINOR
    currency: Expression | None = None
    stamp: Expression | None = None


@record
class ExpectedPayment:
    """The parts of the request that a response can be compared with."""

    money: Money | None = None
    stamp: str | None = None


def classify(evidence: Evidence, rules: ClassifyRules, expected: ExpectedPayment = ExpectedPayment()) -> Classification:
    """The class of this evidence. Anything unforeseen is an unknown outcome whose effect is possible."""
    return read_response(evidence, rules, expected)[0]


def read_response(
    evidence: Evidence, rules: ClassifyRules, expected: ExpectedPayment = ExpectedPayment()
) -> tuple[Classification, Tree]:
    """The class of this evidence, and the decoded body of the response."""
    response = evidence.response
    if response is None:
        return _without_response(evidence), None
    try:
        tree, readable = decode_response(response.body, response.header("Content-Encoding"), rules.encoding), True
    except BodyOverBound:
        # The response is larger than its bound. Its content is not known, whatever the status code is.
        return Classification.of(ResultClass.UNKNOWN_OUTCOME, "answer_over_bound", lost=True), None
    except BodyError:
        tree, readable = None, False
    if evidence.repeats_previous and reference_in(rules, tree) is not None:
        # Two calls never get the same reference: this is a stray copy, and the call's own response is still to come.
        return Classification.of(ResultClass.UNKNOWN_OUTCOME, "answer_of_another_call", lost=True), None
    return _by_response(response, tree, rules, expected, readable=readable), tree


def _by_response(
    response: Response, tree: Tree, rules: ClassifyRules, expected: ExpectedPayment, *, readable: bool
) -> Classification:
    if response.close_delimited and not readable:
        # Perhaps this is only the beginning. The rest of the body is not known, whatever the status code is.
        return Classification.of(ResultClass.UNKNOWN_OUTCOME, "answer_cut_off", lost=True)
    # A body in the API's own format is no page, and needs no further check.
    looks_foreign = not readable or (isinstance(tree, dict) and "html" in tree)
    foreign = looks_foreign and is_foreign_page(response, tree, readable=readable)
    by_row, observed = _by_rules(rules, response, tree, foreign=foreign)
    by_row = by_row or _success_in_error(rules, response, tree, foreign=foreign)
    found = by_row or _by_page_or_status(response.status_code, rules, readable=readable, foreign=foreign)
    if observed is not None:
        found = replace(found, shadow_match=observed)
    # A result without effect can show a payment too, and that must be the requested one.
    if found.effect is Effect.NONE and found.result_class not in PROVIDER_SAID_NO:
        return found  # the request was turned away, so the response cannot show a payment
    if not matches_expected(rules.fit, tree, expected):
        return replace(unfit(rules.fit, tree, expected), shadow_match=observed)
    # An error that no row knows may have its own id in the payment's place. An inquiry for that id would find nothing.
    names_payment = by_row is not None or 200 <= response.status_code < 300
    if not names_payment or found.result_class in DENIALS:
        return found
    return replace(found, reference=name_at(rules.reference, tree))


def reference_in(rules: ClassifyRules, tree: Tree) -> str | None:
    """The provider's own id of the payment in a response or object."""
    return name_at(rules.reference, tree)


def name_at(expression: Expression | None, tree: Tree) -> str | None:
    """The name at this place of a response or object; None if there is none."""
    return reference_text(expression(tree)) if expression is not None else None


def was_executed(classification: Classification) -> bool:
    """Whether the provider let this credential act: it paid, accepted, declined, or asked the customer to act."""
    return classification.effect is Effect.DONE or classification.result_class in PROVIDER_SAID_NO


@record
class ClassifyRules:
    """All rules of a policy that classification needs for one operation."""

    rows: tuple[ResponseRule, ...] = ()
    answers: tuple[ResponseRule, ...] = ()
    reference: Expression | None = None
    fit: ResponseMatcher = ResponseMatcher()
    moves_money: bool = True
    encoding: Encoding = Encoding(policy_defaults.BODY)  # of requests, and so of responses
    advice_by_code: Mapping[str, Advice] | None = None

    def advice_of(self, row: ResponseRule, tree: Tree) -> Advice | None:
        """The policy's advice for the customer after this row; None: the advice of the class."""
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
    """Whether the body is not in the API's format. Then a gateway in front of the provider wrote it, before or after
    the provider did its work. An empty body is no page."""
    if not response.body.strip():
        return False
    return not readable or (isinstance(tree, dict) and list(tree) == ["html"])


def _by_rules(
    rules: ClassifyRules, response: Response, tree: Tree, *, foreign: bool
) -> tuple[Classification | None, ShadowMatch | None]:
    """The classification by the first row that matches, and the first `observe` row that would have come before it.
    Only a row that names its status and a header may read a foreign page, because the page shows no object of the
    provider."""
    observed: ShadowMatch | None = None
    status_code = response.status_code
    empty = not response.body.strip()
    may_be_unproven = tree in NOTHING_SHOWN or not 200 <= status_code < 300
    for row in (*rules.rows, *rules.answers):
        if row.status_codes is not None and status_code not in row.status_codes:
            continue  # most rows, for most responses
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
    """Whether a row without a status reads a success that the response cannot prove: from a body that shows nothing,
    or, for a row of an object, from an error. The caller skips this check for a 2xx that shows something."""
    return row.says_done(result_class) and (tree in NOTHING_SHOWN or row in rules.answers)


def _success_in_error(rules: ClassifyRules, response: Response, tree: Tree, *, foreign: bool) -> Classification | None:
    """An unknown outcome, if the status means that the request was turned away, but the body would be a success under a
    2xx; else None."""
    if foreign or tree in NOTHING_SHOWN or 200 <= response.status_code < 300:
        return None
    if _by_status(response.status_code, readable=True, kind_moves_money=rules.moves_money).effect is not Effect.NONE:
        return None
    # Any other reading by a row of the object would have been found already, so a match here reads a success.
    looks_done = any(row.status_codes is None and not row.observe and row.read(response, tree) for row in rules.answers)
    return Classification.of(ResultClass.UNKNOWN_OUTCOME, SUCCESS_IN_ERROR) if looks_done else None


# Not 406: a framework may find out only after its work that it cannot write the response.
_VALIDATION_CODES = frozenset({400, 404, 405, 410, 411, 413, 414, 415, 417, 422, 431})
_AUTHENTICATION_CODES = frozenset({401, 403, 407})


def _by_page_or_status(status_code: int, rules: ClassifyRules, *, readable: bool, foreign: bool) -> Classification:
    """The classification of a response that no row reads. A foreign page with a 2xx or 5xx needs no rule here, because
    the rules by status make it doubt under their own names."""
    if foreign and not 200 <= status_code < 300 and status_code < 500:
        return Classification.of(ResultClass.UNKNOWN_OUTCOME, FOREIGN_PAGE, lost=True)
    return _by_status(status_code, readable=readable and not foreign, kind_moves_money=rules.moves_money)


def _by_status(status_code: int, *, readable: bool, kind_moves_money: bool) -> Classification:
    """The built-in rules. A status counts as without effect only if HTTP itself defines that the request was turned
    away."""
    name = f"http_{status_code}"
    if 200 <= status_code < 300:
        if not readable:
            # A success status with a truncated or garbled body, or none: treated as a lost response.
            return Classification.of(ResultClass.UNKNOWN_OUTCOME, "unreadable_2xx", lost=True)
        if not kind_moves_money:
            return Classification.of(ResultClass.SUCCEEDED, name)
        return Classification.of(ResultClass.UNKNOWN_OUTCOME, UNREAD_SUCCESS)
    if status_code == 402:
        return Classification.of(
            ResultClass.ISSUER_HARD_DECLINE, name
        )  # a decline that no row lists: the class that is never retried
    if status_code == 429:
        return Classification.of(ResultClass.RATE_LIMITED, name)
    if status_code in _AUTHENTICATION_CODES:
        return Classification.of(ResultClass.AUTHENTICATION_ERROR, name)
    if status_code in _VALIDATION_CODES:
        return Classification.of(ResultClass.VALIDATION_ERROR, name)
    # A gateway's page replaces the provider's own error: the provider's response, if there was one, is lost.
    lost = status_code >= 500 and not readable
    if status_code in {408, 504}:
        return Classification.of(ResultClass.PROVIDER_TIMEOUT, name, lost=lost)
    if status_code >= 500:
        return Classification.of(ResultClass.TEMPORARY_PROVIDER_ERROR, name, lost=lost)
    return Classification.of(ResultClass.UNKNOWN_OUTCOME, name)


def matches_expected(fit: ResponseMatcher, tree: Tree, expected: ExpectedPayment) -> bool:
    """Whether the response shows the requested amount, currency and stamp. A value that it does not show cannot
    contradict."""
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
    """The unknown outcome of a response that does not match the request, with the amount that it shows instead."""
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
    """A name that can be stored, shown and used in an inquiry; None if the value is not one. JSON may contain halves of
    characters, which no journal can store."""
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        return None
    text = str(value)
    return text if text.isprintable() and 0 < len(text) <= _REFERENCE_LENGTH_MAX else None


def _same_text(found: str | None, wanted: str) -> bool:
    return found is not None and found.strip().lower() == wanted.lower()
