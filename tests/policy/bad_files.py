"""Bad policy files: one piece of the minimal file replaced, and what is then said. The words stand in bad_files.txt.

After a deliberate change of a message: `python -m tests.policy.bad_files` writes them anew; read the difference.
"""

from __future__ import annotations

from pathlib import Path

from paywitness.core.errors import PolicyError
from tests.policy.texts import changed, load

GOLDEN = Path(__file__).with_name("bad_files.txt")

# What is wrong with it, what is replaced, by what.
CASES: tuple[tuple[str, str, str], ...] = (
    ("a key that does not exist", "upstream: http", "upstreem: http"),
    ("an unknown key deep inside", "first_byte: 5s", "first_bite: 5s"),
    ("a missing provider", "provider: bank\n", ""),
    ("a provider name with capitals", "provider: bank", "provider: Bank"),
    ("a reserved provider name", "provider: bank", "provider: paywitness"),
    ("an upstream without scheme", "http://127.0.0.1:9000", "api.bank.test"),
    ("an upstream with a query", "http://127.0.0.1:9000", "https://api.bank.test/?a=1"),
    ("an interpolated upstream", "http://127.0.0.1:9000", '"https://${PREFIX}.bank.test"'),
    ("an unknown kind", "kind: sale", "kind: sales"),
    ("no kind", "    kind: sale\n", ""),
    ("a match without a method", "match: POST /v1/payments", "match: /v1/payments"),
    ("a match with a query", "match: POST /v1/payments", "match: POST /v1/payments?a=1"),
    ("a match with a half parameter", "match: POST /v1/payments", 'match: "POST /v1/payments/{id"'),
    ("a match with an empty segment", "match: POST /v1/payments", "match: POST /v1//payments"),
    ("the same parameter twice", "match: POST /v1/payments", 'match: "POST /v1/{a}/{a}"'),
    ("a duration with a word", "first_byte: 5s", "first_byte: 5 seconds"),
    ("a duration without a unit", "first_byte: 5s", "first_byte: 5"),
    ("a deadline beyond its bound", "deadline: 20s", "deadline: 1h"),
    ("a number of attempts out of bounds", "attempts: 3", "attempts: 11"),
    ("a word for a number", "attempts: 3", "attempts: three"),
    ("YAML's idea of a boolean", "  window: 24h\n", "  window: 24h\n  required: yes\n"),
    ("a place of an unknown kind", "send_as: header:Idempotency-Key", "send_as: heder:Idempotency-Key"),
    ("a place without a kind", "send_as: header:Idempotency-Key", "send_as: Idempotency-Key"),
    ("accounts that are a list", "account: [const:main]", "accounts: [main]"),
    ("an account that nothing names", "account: [const:main]", "accounts:\n  shop_a: {merchant: alpha}"),
    (
        "an account with a name that is none",
        "account: [const:main]",
        "accounts:\n  Shop A: {credentials: {header: {Authorization: env:A}}}",
    ),
    (
        "an account with an unknown key",
        "account: [const:main]",
        "accounts:\n  shop_a: {selector: 1, credentials: {header: {Authorization: env:A}}}",
    ),
    (
        "an account with a literal credential",
        "account: [const:main]",
        "accounts:\n  shop_a: {credentials: [{header: {Authorization: Bearer secret}}]}",
    ),
    (
        "an account by a place that is no selector",
        "account: [const:main]",
        'account: [const:main, header:Shop]\naccounts:\n  shop_a: {selectors: {"header:Other": a}}',
    ),
    (
        "an account by a selector of a constant",
        "account: [const:main]",
        'accounts:\n  shop_a: {selectors: {"const:main": a}}',
    ),
    (
        "two accounts of the same selector",
        "account: [const:main]",
        'account: [header:Shop]\naccounts:\n  shop_a: {selectors: {"header:Shop": a}}\n'
        '  shop_b: {selectors: {"header:Shop": a}}',
    ),
    (
        "two accounts that only credentials tell apart, of one merchant",
        "account: [const:main]",
        "accounts:\n  shop_a: {credentials: {header: {Authorization: env:A}}}\n"
        "  shop_b: {credentials: {header: {Authorization: env:B}}}",
    ),
    (
        "one credential of two accounts",
        "account: [const:main]",
        "merchants: many\naccounts:\n  shop_a: {credentials: {header: {Authorization: env:A}}}\n"
        "  shop_b: {credentials: {header: {Authorization: env:A}}}",
    ),
    (
        "an owner whom nobody names",
        "account: [const:main]",
        "accounts:\n  shop_a: {owner: acct_1}",
    ),
    ("many merchants that nothing tells apart", "account: [const:main]", "merchants: many"),
    ("a credential as the account", "account: [const:main]", "account: [header:Authorization]"),
    ("an account in a path that has none", "account: [const:main]", "account: [path:merchant]"),
    ("an empty list", "account: [const:main]", "account: []"),
    ("a list where a mapping belongs", "timeouts: {first_byte: 5s, deadline: 20s}", "timeouts: [5s]"),
    ("a value where a list belongs", "account: [const:main]", "account: const:main"),
    ("nothing where a value belongs", "kind: sale", "kind:"),
    ("an unknown answer", "    answer: payment\n", "    answer: payments\n"),
    ("an unknown table", "error.code, table: declines", "error.code, table: decline"),
    ("an unknown class in a row", "as: succeeded", "as: suceeded"),
    ("an unknown class in a table", "issuer_hard_decline: [stolen_card]", "issuer_hard_declines: [stolen_card]"),
    ("a code in two lists", "[no_funds]", "[no_funds, stolen_card]"),
    ("a row without a condition", "{when: \"status == 'paid'\", as: succeeded}", "{as: succeeded}"),
    ("a row without a reading", "{when: \"status == 'paid'\", as: succeeded}", "{when: \"status == 'paid'\"}"),
    ("a code without a table", "{status: 402, code: error.code, table: declines}", "{status: 402, code: error.code}"),
    (
        "a row with both a reading and a table",
        "{status: 402, code: error.code, table: declines}",
        "{status: 402, as: failed, code: error.code, table: declines}",
    ),
    ("a server error as a success", "{status: 402, code: error.code, table: declines}", "{status: 5xx, as: succeeded}"),
    ("a success without effect", "as: succeeded}", "as: succeeded, effect: none}"),
    ("a status that is none", "status: 402", "status: 6xx"),
    ("a double-quoted text in a comparison", "\"status == 'paid'\"", "'status == \"paid\"'"),
    ("a bare word in a comparison", "\"status == 'paid'\"", '"paid == true"'),
    ("a bare word that is negated", "\"status == 'paid'\"", '"!false"'),
    ("a success that compares two fields", "\"status == 'paid'\"", '"captured == @.amount"'),
    ("a success by what is missing", "\"status == 'paid'\"", '"!error"'),
    (
        "a success by a header alone",
        "{when: \"status == 'paid'\", as: succeeded}",
        "{header: {X-Paid: y}, as: succeeded}",
    ),
    ("a single equals sign", "\"status == 'paid'\"", "\"status = 'paid'\""),
    ("an unfinished expression", "\"status == 'paid'\"", '"status =="'),
    ("an unknown function", "\"status == 'paid'\"", '"lenght(status)"'),
    (
        "an expression that copies its input over and over",
        "\"status == 'paid'\"",
        '"[@,@]|[@,@]|[@,@]|[@,@]|[@,@]|[]|[]"',
    ),
    (
        "money that moves with no answer to read it by",
        "    reference: id\n    answer: payment\n",
        "    reference: id\n",
    ),
    ("an answer that never shows a success", "as: succeeded", "as: failed"),
    ("a key without a window", "  window: 24h\n", ""),
    ("a key without a word on errors", "  errors_under_key: replayed\n", ""),
    ("a window without a key", "  send_as: header:Idempotency-Key\n", ""),
    ("an unknown word on errors", "errors_under_key: replayed", "errors_under_key: replay"),
    ("an assumption in the wrong shape", "window: 24h", "window: {assume: 15m}"),
    ("a re-send past the window", "window: 24h", "window: 2m"),
    ("a settle time that is too short", "settle: 10m", "settle: 30s"),
    (
        "an inquiry that names nothing",
        'ask:\n      - {needs: reference, request: "GET /v1/payments/{reference}"',
        "ask:\n      - {request: GET /v1/payments",
    ),
    ("a reference without needs", "{needs: reference, request:", "{request:"),
    ("needs a reference that nothing shows", "    reference: id\n", ""),
    ("an unknown placeholder", "payments/{reference}", "payments/{refrence}"),
    ("a path placeholder that is not in the match", "payments/{reference}", "payments/{path:payment}"),
    ("an operation id without a stamp", "payments/{reference}", "payments/{operation_id}"),
    ("an inquiry that changes something", "GET /v1/payments/{reference}", "PUT /v1/payments/{reference}"),
    (
        "a look-up that would pay",
        'request: "GET /v1/payments/{reference}"',
        'request: POST /v1/payments, body: {id: "{reference}"}',
    ),
    (
        "a credential in the headers of a look-up",
        'request: "GET /v1/payments/{reference}"',
        'request: "GET /v1/payments/{reference}", headers: {X-API-Key: sk_1}',
    ),
    (
        "a body of a GET",
        'request: "GET /v1/payments/{reference}"',
        'request: "GET /v1/payments/{reference}", body: {id: "{reference}"}',
    ),
    ("a target that is not in the path", "    reference: id\n", "    reference: id\n    target: path:payment\n"),
    ("a class that is never retried", "retry:\n", "retry:\n  issuer_soft_decline: {attempts: 2}\n"),
    ("a class that does not exist", "retry:\n", "retry:\n  rate_limit: {attempts: 2}\n"),
    ("a cap under its base", "base: 100ms", "base: 10s"),
    ("a fallback to itself", "resolve: {", "fallback: [{to: bank, when: [not_sent]}]\nresolve: {"),
    (
        "a fallback on absent without settle",
        "resolve: {settle: 10m, resend_for: 2m}",
        "fallback: [{to: other, when: [absent]}]",
    ),
    ("a secret in the file", "resolve: {", 'credentials: {header: {Authorization: "Bearer sk_live_1"}}\nresolve: {'),
    (
        "an unknown webhook scheme",
        "resolve: {",
        "webhook: {scheme: strip, event_id: id, find: [{reference: id}], answer: payment}\nresolve: {",
    ),
    (
        "a webhook that looks for nothing known",
        "resolve: {",
        "webhook: {scheme: stripe, secrets: [env:S], event_id: i, find: [{referense: i}], answer: payment}\nresolve: {",
    ),
    (
        "a webhook without secrets",
        "resolve: {",
        "webhook: {scheme: stripe, event_id: id, find: [{reference: id}], answer: payment}\nresolve: {",
    ),
    (
        "a secret of a webhook in the file",
        "resolve: {",
        "webhook: {scheme: stripe, secrets: {a: [whsec]}, event_id: i, find: [{intent: i}], answer: payment}\n"
        "resolve: {",
    ),
    (
        "an option that a scheme does not have",
        "resolve: {",
        "webhook: {scheme: {hmac_sha256: {heder: X}}, secrets: [env:S], event_id: id, find: [{intent: i}], "
        "answer: payment}\nresolve: {",
    ),
    (
        "an unsigned time",
        "resolve: {",
        'webhook: {scheme: {hmac_sha256: {signed: "{body}"}}, secrets: [env:S], event_id: id, find: [{intent: i}], '
        "answer: payment}\nresolve: {",
    ),
    (
        "a webhook that says nothing",
        "resolve: {",
        "webhook: {scheme: stripe, secrets: [env:S], event_id: id, find: [{reference: id}]}\nresolve: {",
    ),
    (
        "a relay that is no address",
        "resolve: {",
        "webhook: {scheme: stripe, secrets: [env:S], event_id: id, find: [{reference: id}], answer: payment, "
        "relay: shop}\nresolve: {",
    ),
    ("a fallback without an intent", "resolve: {", "fallback: [{to: other, when: [not_sent]}]\nresolve: {"),
    (
        "a fallback on rejections that no row marks",
        "resolve: {",
        "fallback: [{to: other, when: [not_sent, rejected]}]\nresolve: {",
    ),
    (
        "a fallback of what may have had an effect",
        "classify:\n",
        "classify:\n  - {status: 400, as: validation_error, effect: possible, fallback: true}\n",
    ),
    (
        "a fallback of what was paid",
        "classify:\n",
        "classify:\n  - {status: 200, when: paid, as: succeeded, fallback: true}\n",
    ),
    ("a fallback of a decline", "classify:\n", "classify:\n  - {status: 402, as: risk_decline, fallback: true}\n"),
    (
        "a fallback of a gateway's error",
        "classify:\n",
        "classify:\n  - {status: [400, 503], as: validation_error, fallback: true}\n",
    ),
    ("a fallback for no reason", "resolve: {", "fallback: [{to: other, when: [timeout], after: 0}]\nresolve: {"),
    ("a dashboard without an address", "resolve: {", "dashboard: bank.test\nresolve: {"),
    (
        "a placeholder in an expression without quotes",
        'payments/{reference}", answer: payment}',
        'payments/{reference}", at: "data[?id == {reference}]", answer: payment}',
    ),
    (
        "a cancel that nobody gives",
        "    reference: id\n",
        "    reference: id\n    cancel:\n      request: POST /x/{reference}\n      when: never\n"
        "      read: [{status: 200, as: cancelled}]\n",
    ),
    ("another payment at will", "    reference: id\n", "    reference: id\n    during_action: never\n"),
    ("a percentage without its sign", "resolve: {", "circuit: {open_at: {bad: 85}}\nresolve: {"),
    (
        "a budget whose ratio is above its ceiling",
        "resolve: {",
        "budget: {account: {ratio: 20%, ceiling: 10%}}\nresolve: {",
    ),
    (
        "a circuit that degrades after it opens",
        "resolve: {",
        "circuit: {open_at: {bad: 60%}, degrade_at: {bad: 70%}}\nresolve: {",
    ),
    ("a priority that does not exist", "resolve: {", "priority: [{as: urgent}]\nresolve: {"),
    ("a priority row that gives none", "resolve: {", "priority: [{when: express}]\nresolve: {"),
    ("a priority row of another shape", "resolve: {", "priority: [low, {if: express, as: low}]\nresolve: {"),
    (
        "a priority row behind one that takes every call",
        "resolve: {",
        "priority: [{as: medium}, {when: express, as: high}]\nresolve: {",
    ),
    ("an amount without its currency", "resolve: {", "priority: [{above: 50000, as: high}]\nresolve: {"),
    ("an amount with more decimals than there are", "resolve: {", "priority: [{above: 1.5 JPY, as: high}]\nresolve: {"),
    (
        "amounts that nothing is between",
        "resolve: {",
        "priority: [{above: 5.00 EUR, below: 5.01 EUR, as: low}]\nresolve: {",
    ),
    (
        "amounts of two currencies in one row",
        "resolve: {",
        "priority: [{above: 5 EUR, below: 9 USD, as: low}]\nresolve: {",
    ),
    (
        "an amount to compare where the operation has none",
        "    currency: currency\n",
        "    priority: [{below: 5 EUR, as: low}]\n",
    ),
    ("a header that cannot be forced", "resolve: {", "headers: {Authorization: x}\nresolve: {"),
    ("an unknown shipped policy", "provider: bank", "extends: paywitness:strip\nprovider: bank"),
    (
        "a fit with nothing to hold it against",
        "    amount: {at: amount, unit: minor}\n",
        "    fits: {amount: amount, unit: minor, stamp: metadata.id}\n",
    ),
    ("a fit without a unit", "    reference: id\n", "    reference: id\n    fits: {amount: amount}\n"),
    ("a body path with brackets", "resolve: {", 'ignore: ["items[0].time"]\nresolve: {'),
    ("a cancel of expired actions without a way", "resend_for: 2m}", "resend_for: 2m, on_action_expired: cancel}"),
    ("an unknown end of an action", "resend_for: 2m}", "resend_for: 2m, on_action_expired: void}"),
    ("a schedule that does not rise", "resend_for: 2m}", "resend_for: 2m, schedule: [10s, 2s]}"),
    (
        "an operation behind one that takes its calls",
        "answers:\n",
        "  late:\n    kind: sale\n    match: POST /v1/payments\n    answer: payment\nanswers:\n",
    ),
    (
        "two operations under one name in keys",
        "answers:\n",
        "  late: {kind: sale, formerly: pay, match: POST /v2/payments, answer: payment}\nanswers:\n",
    ),
    ("an error shape that is no mapping", "resolve: {", "problem: oops\nresolve: {"),
    ("an error shape over our own members", "resolve: {", 'problem: {status: "{detail}"}\nresolve: {'),
    ("a key with a line break", "resolve: {", '"re\\nsolve": {}\nresolve: {'),
    ("a merge key", "retry:\n", "retry:\n  <<: {attempts: 2}\n"),
    ("a max_length shorter than a key", "  window: 24h\n", "  window: 24h\n  max_length: 20\n"),
    ("a min_length longer than a key", "  window: 24h\n", "  window: 24h\n  min_length: 40\n"),
    ("characters that are none", "  window: 24h\n", "  window: 24h\n  characters: a-z0-9\n"),
    ("characters without room for a UUID", "  window: 24h\n", "  window: 24h\n  characters: A-Z 0-9 -\n"),
    (
        "a status that refuses nothing",
        "resolve: {",
        "webhook: {scheme: stripe, secrets: [env:S], event_id: id, find: [{reference: id}], answer: payment, "
        "refuse_with: 200}\nresolve: {",
    ),
    (
        "a success that is not kept under the key",
        "as: succeeded}",
        "as: succeeded, stored: false}",
    ),
    (
        "a success of a table that is not kept under the key",
        "{status: 402, code: error.code, table: declines}",
        "{status: 402, code: error.code, table: declines, otherwise: pending, stored: false}",
    ),
    (
        "an inquiry's own credential",
        'request: "GET /v1/payments/{reference}"',
        'request: "GET /v1/payments/{reference}", headers: {Authorization: Bearer x}',
    ),
    ("a listener without a port", "resolve: {", "listen: 127.0.0.1\nresolve: {"),
    ("a mode that does not exist", "resolve: {", "mode: observing\nresolve: {"),
    ("the same key twice", "    kind: sale\n", "    kind: sale\n    kind: refund\n"),
    ("a tab", "timeouts: {", "\ttimeouts: {"),
    (
        "a cancel that closes nothing",
        "    reference: id\n",
        "    reference: id\n    cancel:\n      request: POST /x/{reference}\n      read: [{status: 200, as: failed}]\n",
    ),
    (
        "one merchant of many",
        "provider: bank",
        "provider: bank\nmerchant: shop\nmerchants: many\nwho_am_i: {request: GET /v1/me, field: id}",
    ),
)


def problems_of(text: str) -> tuple[str, ...]:
    """What is said of the text; nothing where it loads."""
    try:
        load(text)
    except PolicyError as error:
        return error.problems
    return ()


def golden() -> dict[str, tuple[str, ...]]:
    """The words by case: a line `# case`, then the problems."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in GOLDEN.read_text().splitlines():
        if line.startswith("# "):
            lines = found.setdefault(line.removeprefix("# "), [])
        elif line:
            lines.append(line)
    return {case: tuple(said) for case, said in found.items()}


def main() -> None:
    sections = ["\n".join([f"# {case}", *problems_of(changed(old, new))]) for case, old, new in CASES]
    GOLDEN.write_text("\n\n".join(sections) + "\n")


if __name__ == "__main__":
    main()
