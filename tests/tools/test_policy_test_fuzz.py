"""Whatever stands in a case file, `policy test` tells what is wrong with it, or runs it; it never breaks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paywitness.tools.policy_test.case import AFTER, CASE, EXPECT, REQUEST, RESPONSE
from paywitness.tools.policy_test.case_runner import as_json, report_lines, run_case_files
from paywitness.tools.policy_test.flow import STEP

TOP = Path(__file__).resolve().parents[2]

texts = st.text(max_size=12) | st.sampled_from(
    [
        "sale",
        "POST /v1/charges",
        "POST /v1/charges/ch_1/capture",
        "{each}",
        "5s",
        "true",
        "reset",
        "connecting",
        "200",
        "none",
    ]
)
values: st.SearchStrategy[Any] = st.recursive(
    texts | st.none() | st.booleans() | st.integers(0, 600),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


def block(keys: Any, **typical: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Some of the block's keys, with what they take or anything else."""
    optional = {key: typical[key] | values if key in typical else values for key in keys}
    return st.fixed_dictionaries({}, optional=optional)


bodies = st.fixed_dictionaries({"amount": st.just(1099) | values, "currency": st.just("EUR"), "metadata": values})
requests = block(REQUEST.keys, send=st.just("POST /v1/charges"), body=bodies, headers=st.just({"Idempotency-Key": "k"}))
responses = block(RESPONSE.keys, status=st.sampled_from([200, 402, 500]), body=st.just({"status": "succeeded"}))
afters = block(AFTER.keys, fault=st.just("reset"), age=st.just("5h"), response=responses)
cases = block(
    CASE.keys,
    request=requests,
    response=responses,
    after=afters,
    expect=block(EXPECT.keys),
    fault=st.just("reset"),
)


@pytest.fixture(scope="module")
def acme(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policies")
    (folder / "tests").mkdir()
    (folder / "acme.yaml").write_text((TOP / "policies" / "acme.yaml").read_text())
    return folder / "acme.yaml"


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(st.lists(cases, max_size=3))
def test_any_case_file_is_told_of_or_run(acme: Path, found: list[dict[str, Any]]) -> None:
    (acme.parent / "tests" / "acme.yaml").write_text(json.dumps({"cases": found}))
    runs = run_case_files([acme])
    assert all("\n" not in line for line in report_lines(runs))
    json.dumps(as_json(runs))


@pytest.mark.parametrize(
    "case",
    [
        {"request": {"send": "POST /v1/charges", "body": "é"}, "response": 200, "expect": {"class": "pending"}},
        {"request": {"send": "POST /%zz"}, "response": 200, "expect": {"class": "pending"}},
        {"request": {"send": "POST /v1/charges", "body": [1]}, "response": 200, "expect": {"class": "pending"}},
        {
            "request": {"send": "POST /v1/charges/{each}/void"},
            "each": ["é\u2028"],
            "fault": "reset",
            "expect": {"guard": "none"},
        },
    ],
)
def test_odd_requests_are_run(acme: Path, case: dict[str, Any]) -> None:
    (acme.parent / "tests" / "acme.yaml").write_text(json.dumps({"cases": [case]}))
    (run,) = run_case_files([acme])
    assert not run.problems
    assert len(run.judged) == 1


# --- flows

charges = st.builds(
    lambda status, captured, refunded: {
        "body": {
            "id": "ch_1",
            "object": "charge",
            "status": status,
            "amount": 1099,
            "currency": "EUR",
            "captured": captured > 0,
            "amount_captured": captured,
            "amount_refunded": refunded,
        }
    },
    st.sampled_from(["succeeded", "authorized", "processing", "requires_action", "failed", "voided", "reversed"]),
    st.sampled_from([0, 600, 1099, 2000]),
    st.sampled_from([0, 500, 1099]),
)
refusals = st.sampled_from(["charge_already_captured", "odd"]).map(
    lambda code: {"status": 409, "body": {"error": {"type": "invalid_request_error", "code": code}}}
)
answers = charges | refusals | st.sampled_from([402, 429, 500, 503])
sends = st.sampled_from(
    [
        "POST /v1/charges",
        "POST /v1/charges/ch_1/capture",
        "POST /v1/charges/ch_1/void",
        "POST /v1/charges/ch_1/refunds",
        "POST /v1/payouts",
    ]
)
flow_requests = st.builds(
    lambda send, key, capture, amount: {
        "send": send,
        "headers": {"Idempotency-Key": key},
        "body": {"amount": amount, "currency": "EUR", "capture": capture, "metadata": {"order_id": "O-1"}},
    },
    sends,
    st.sampled_from(["k1", "k2", "k3"]),
    st.booleans(),
    st.sampled_from([1099, 600, 1]),
)
steps = st.one_of(
    st.builds(lambda request, response: {"request": request, "response": response}, flow_requests, answers),
    st.builds(lambda request: {"request": request, "lost": "yes"}, flow_requests),
    st.builds(lambda response, of: {"inquiry": response, "of": of}, answers, st.integers(1, 3)),
    charges.map(lambda charge: {"event": {"body": {"id": "evt_1", "data": charge["body"]}}}),
    st.sampled_from(["5s", "20m", "3d"]).map(lambda pause: {"pause": pause}),
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(st.lists(steps, min_size=1, max_size=8) | st.lists(block(STEP.keys, request=requests), max_size=3))
def test_any_flow_is_told_of_or_run(acme: Path, found: list[dict[str, Any]]) -> None:
    flow = {"name": "any", "steps": found}
    (acme.parent / "tests" / "acme.yaml").write_text(json.dumps({"flows": [flow]}))
    runs = run_case_files([acme])
    assert all("\n" not in line for line in report_lines(runs))
    json.dumps(as_json(runs))
