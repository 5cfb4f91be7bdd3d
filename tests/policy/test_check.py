"""`policy check` tells everything in plain lines and never raises."""

from __future__ import annotations

from pathlib import Path

import pytest

from paywitness.policy.check import check
from tests.policy.texts import MINIMAL, changed

COMPARED_WITH_NOTHING = changed("    reference: id\n", "    reference: id\n    fits: none\n")


def written(tmp_path: Path, text: str, name: str = "bank.yaml") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_a_good_file_is_described(tmp_path):
    path = written(tmp_path, MINIMAL)
    report = check([path])
    assert report.ok
    assert report.lines[0] == f"{path}: OK"
    assert report.lines[2:-1] == (
        "    pay (sale): POST /v1/payments",
        "      contract: key as header:Idempotency-Key, remembered 24h, errors replayed: "
        "re-sent after a lost response, inquired about after a 5xx; inquiries possible",
        "      tries: 3, full 100ms up to 5s; rate_limited 3, full 1s up to 5s; first byte 5s, deadline 20s",
        "      in doubt: inquiry by GET /v1/payments/{reference} (3 misses over 5s, "
        "once a response or event has shown its reference, ours by the reference at id); "
        "re-sent for 2m if that is safe; checked after 2s, 10s, 30s, 2m, 10m, 1h, 6h, 24h; "
        "absent only after 10m of silence and the misses above; "
        "then a person decides",
        "    budget: retries in 10s: provider 100 or 5% to 100%, operation 50 or 5% to 100%, account 30 or 5% to 100%, "
        "failure_class 50 or 5% to 100% of first attempts; 3 an intent",
        "    circuit: 20 calls or more in 10s: open at bad 85%, unknown 50%, slow 90%; "
        "degraded at bad 20%, unknown 5%, slow 50%, throttled 10%; slow after 8s",
        "    a 429 concerns: the credential of the call",
    )
    assert report.lines[-1].startswith(f"  warning: {path}:10:3: operations.pay.fits: found nothing in 'pay': ")


def test_the_numbers_of_limits_are_told(tmp_path):
    limits = "budget: {window: 1m, account: {ceiling: 2.5%}, per_intent: 0}\ncircuit: {open_at: {slow: 30%}}\n"
    lines = [line.strip() for line in check([written(tmp_path, limits + MINIMAL)]).lines]
    (budget,) = (line for line in lines if line.startswith("budget: "))
    (circuit,) = (line for line in lines if line.startswith("circuit: "))
    assert budget.startswith("budget: retries in 1m: ")
    assert "account 30 or 2.5% to 2.5%, " in budget
    assert budget.endswith("; 0 an intent")
    assert "open at bad 85%, unknown 50%, slow 30%; degraded at bad 20%, unknown 5%, slow 30%, throttled 10%" in circuit


@pytest.mark.parametrize(
    ("limited_by", "whom"),
    [
        ("credential", "the credential of the call"),
        ("account", "the account of the call"),
        ("provider", "every call to the provider"),
    ],
)
def test_it_is_told_whom_a_429_concerns(tmp_path, limited_by, whom):
    lines = [line.strip() for line in check([written(tmp_path, f"limited_by: {limited_by}\n{MINIMAL}")]).lines]
    assert f"a 429 concerns: {whom}" in lines


def test_it_is_told_how_doubt_is_resolved(tmp_path):
    def told(text: str) -> list[str]:
        lines = [line.strip() for line in check([written(tmp_path, text)]).lines]
        return [line for line in lines if line.startswith(("in doubt", "webhook", "fallback", "mode", "not in force"))]

    ask = '    ask:\n      - {needs: reference, request: "GET /v1/payments/{reference}", answer: payment}\n'
    alone = changed(ask, "", changed("errors_under_key: replayed", "errors_under_key: not_stored"))
    assert told(alone) == ["in doubt: a person decides at once"]
    rules = "scheme: hmac_sha256, secrets: [env:S], event_id: id, find: [{reference: id}], answer: payment"
    assert told(f"webhook: {{{rules}, relay: http://shop.test/hook}}\n" + alone) == [
        "in doubt: reported by a webhook; checked after 2s, 10s, 30s, 2m, 10m, 1h, 6h, 24h; then a person decides",
        "webhook: hmac_sha256, secrets in S, found by reference, relayed to http://shop.test/hook",
    ]
    hinting = told(f"webhook: {{{rules}, hint: true}}\n" + MINIMAL)
    assert "; inquiry at once if a webhook hints at it; re-sent for 2m if that is safe; " in hinting[0]
    assert hinting[1:] == [
        "webhook: hmac_sha256, secrets in S, found by reference, only a hint: Paywitness then inquires"
    ]
    assert told(f"webhook: {{{rules}, hint: true}}\n" + alone)[0] == "in doubt: a person decides at once"
    cancel = "    cancel: {request: 'POST /v1/{provider_key}/void', read: [{status: 200, as: cancelled}], "
    giving_up = changed(
        "    kind: sale\n", f"    kind: sale\n    intent: order\n{cancel}when: schedule_ran_out}}\n", alone
    )
    more = "mode: observe\nfallback: [{to: other, when: [not_sent], after: 2}]\n"
    assert told(more + giving_up) == [
        "mode: observe: calls pass unchanged; the decisions that would have been made are counted",
        "in doubt: then cancelled; then a person decides",
        "fallback: other when not_sent after 2 tries",
    ]


def test_an_inquiry_by_what_others_share_is_warned_about(tmp_path):
    def warnings(text: str) -> list[str]:
        return [line for line in check([written(tmp_path, text)]).lines if "warning" in line]

    shared = 'ask: [{request: GET /v1/payments, query: {order: "{body:order}"}, at: data, answer: payment}]'
    ask = 'ask:\n      - {needs: reference, request: "GET /v1/payments/{reference}", answer: payment}'
    text = changed(ask, shared, COMPARED_WITH_NOTHING)
    (warning,) = warnings(text)
    assert "operations.pay.ask[0]: looks for a value that other operations may share" in warning
    assert not warnings(changed("{body:order}", "{provider_key}", text))
    fits = "    reference: id\n    fits: {amount: amount, unit: minor}\n"
    assert not warnings(changed("    reference: id\n    fits: none\n", fits, text))
    compared = changed("at: data,", "at: \"data[?amount == '{body:amount}']\",", text)
    assert not warnings(compared)


def test_contracts_are_told_in_what_they_permit(tmp_path):
    def told(old: str, new: str) -> str:
        return check([written(tmp_path, changed(old, new))]).lines[3].strip()

    assert "remembered for an unknown time; never re-sent in doubt" in told("window: 24h", "window: unknown")
    assert "remembered 15m (assumed)" in told("window: 24h", "window: {assumed: 15m}")
    assert "errors not_stored: never re-sent in doubt" in told("under_key: replayed", "under_key: not_stored")
    assert "takes no key" in told("    kind: sale\n", "    kind: sale\n    idempotency: {send_as: none}\n")


def test_a_bad_file_is_told_whole_beside_the_good_ones(tmp_path):
    good = written(tmp_path, MINIMAL)
    bad = written(tmp_path, changed("kind: sale", "kind: sail", changed("attempts: 3", "attempts: 0")), "bad.yaml")
    report = check([tmp_path])
    assert not report.ok
    assert f"{bad}: 2 errors" in report.lines
    assert f"{good}: OK" in report.lines


def test_b5_a_merchant_that_joins_whatever_accounts_a_call_names_is_told(tmp_path):
    """Two merchants with equal order numbers blocked each other, and each was told of the other's operation."""

    def warnings(text: str) -> list[str]:
        return [line for line in check([written(tmp_path, text)]).lines if line.startswith("  warning: ")]

    named = changed("account: [const:main]", "account: [const:main, header:Tenant]", COMPARED_WITH_NOTHING)
    (warning,) = warnings("merchant: shop\n" + named)
    assert ": merchant: makes one merchant of all accounts that header:Tenant can name: " in warning
    assert not warnings(named)
    assert not warnings("merchant: shop\n" + COMPARED_WITH_NOTHING)


def test_warnings_do_not_fail_a_check(tmp_path):
    text = changed("http://127.0.0.1:9000", "http://api.bank.example.com", COMPARED_WITH_NOTHING)
    text = "identity_change: accepted\n" + text
    text = changed("  window: 24h\n", "  window: 24h\n  take_from: [header:Paywitness-Key]\n", text)
    text = changed("deadline: 20s", "deadline: 2s", text)
    text = changed("classify:\n", "classify:\n  - {status: 503, as: rate_limited}\n", text)
    report = check([written(tmp_path, text)])
    warnings = [line.split(": ")[2] for line in report.lines if line.startswith("  warning: ")]
    assert report.ok
    assert warnings == ["identity_change", "upstream", "idempotency.take_from", "timeouts.first_byte", "classify[0].as"]


def test_contradictions_between_files_fail_a_check(tmp_path):
    written(tmp_path, MINIMAL)
    written(tmp_path, MINIMAL, "twin.yaml")
    report = check([tmp_path])
    assert not report.ok
    assert any("provider: found 'bank', which" in line for line in report.lines)


def test_a_fallback_elsewhere_is_only_a_warning(tmp_path):
    text = changed("    kind: sale\n", "    kind: sale\n    intent: order\n")
    report = check([written(tmp_path, "fallback: [{to: other, when: [not_sent]}]\n" + text)])
    assert report.ok
    assert report.lines[-1].endswith("fallback[0].to: 'other' is not among the files checked")


def test_paths_that_lead_nowhere_are_lines_too(tmp_path):
    assert check([]).lines == ("found nothing to check: name a policy file or a directory of them",)
    assert check([tmp_path]).lines == (f"{tmp_path}: found no policy file (*.yaml, *.yml)",)
    missing = check([tmp_path / "nothing.yaml"])
    assert not missing.ok
    assert missing.lines[-1].endswith("the file cannot be read: No such file or directory")


def test_a_file_named_twice_is_checked_once(tmp_path):
    path = written(tmp_path, MINIMAL)
    assert check([path, tmp_path]).lines == check([path]).lines
