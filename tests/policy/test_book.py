"""The book: which policy a call has, and how a directory becomes a book or a list of problems."""

from __future__ import annotations

from pathlib import Path

import pytest

from paywitness.core.errors import PolicyError
from paywitness.policy.book import PolicyBook, load_directory, read_policy_file
from tests.policy.texts import MINIMAL, changed, load, matched

ROUTES = """\
  search: {kind: none, match: "GET /v1/payments/search"}
  manual: {kind: none, match: [POST /v1/orders, "POST /v1/orders/{order}/pay"], where: "mode == 'manual'"}
  order: {kind: none, match: [POST /v1/orders, "POST /v1/orders/{order}/pay"]}
  look: {kind: none, match: "GET /v1/payments/{payment}"}
answers:
"""
BOOK = PolicyBook.of([load(changed("answers:\n", ROUTES))])


def test_a_call_is_matched_by_method_and_path_without_its_body():
    assert matched(BOOK, "bank", "POST", "/v1/payments") == ("pay", {})
    assert matched(BOOK, "bank", "GET", "/v1/payments/p1") == ("look", {"payment": "p1"})
    assert matched(BOOK, "bank", "GET", "/v1/payments/search") == ("search", {})


def test_where_decides_between_operations_of_one_path():
    assert matched(BOOK, "bank", "POST", "/v1/orders/7/pay", {"mode": "manual"}) == ("manual", {"order": "7"})
    assert matched(BOOK, "bank", "POST", "/v1/orders/7/pay", {"mode": "auto"}) == ("order", {"order": "7"})
    assert matched(BOOK, "bank", "POST", "/v1/orders", {}) == ("order", {})


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/payments"),
        ("POST", "/v1/payments/1"),
        ("PUT", "/v1/payments"),
        ("POST", "/"),
        ("POST", "/V1/payments"),
    ],
)
def test_what_no_operation_names_matches_nothing(method, path):
    assert matched(BOOK, "bank", method, path) == ("", {})


def test_another_provider_matches_nothing():
    assert BOOK.candidates("other", "POST", ("v1", "payments")) == ()


def test_all_operations_of_a_route_are_candidates_in_the_order_of_the_file():
    found = BOOK.candidates("bank", "POST", ("v1", "orders"))
    assert [policy.operation for policy, _ in found] == ["manual", "order"]
    found = BOOK.candidates("bank", "GET", ("v1", "payments", "search"))
    assert [(policy.operation, parameters) for policy, parameters in found] == [
        ("search", {}),
        ("look", {"payment": "search"}),
    ]


def test_a_host_finds_its_provider():
    exact = load("hosts: [api.bank.test, eu.bank.test]\n" + MINIMAL)
    starred = load('hosts: ["*.bank.test", "*-live.pay.test"]\n' + changed("provider: bank", "provider: other"))
    book = PolicyBook.of([exact, starred])

    def name_of(host: str) -> str | None:
        found = book.provider_for_host(host)
        return found.name if found else None

    assert name_of("API.bank.test") == "bank"
    assert name_of("us.bank.test") == "other"
    assert name_of("shop-live.pay.test") == "other"
    assert name_of("a.b.bank.test") is None
    assert name_of("bank.test") is None
    assert name_of("evil.test") is None


def write(directory: Path, **files: str) -> None:
    for name, text in files.items():
        (directory / f"{name}.yaml").write_text(text)


def test_a_directory_becomes_a_book(tmp_path):
    write(tmp_path, bank=MINIMAL, other=changed("provider: bank", "provider: other") + "hosts: [other.test]\n")
    (tmp_path / "notes.txt").write_text("not a policy")
    (tmp_path / ".hidden.yaml").write_text("not: [a policy")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "case.yaml").write_text("not: [a policy")
    book = load_directory(tmp_path)
    assert list(book.providers) == ["bank", "other"]
    assert book.providers["bank"].source == str(tmp_path / "bank.yaml")
    assert len(book.revision) == 16


def test_both_endings_are_policies(tmp_path):
    (tmp_path / "bank.yml").write_text(MINIMAL)
    assert list(load_directory(tmp_path).providers) == ["bank"]


def problems_in(directory: Path) -> list[str]:
    with pytest.raises(PolicyError) as caught:
        load_directory(directory)
    return [problem.replace(f"{directory}/", "") for problem in caught.value.problems]


def test_problems_of_all_files_are_told_at_once(tmp_path):
    write(tmp_path, a=changed("kind: sale", "kind: sail"), b="- a list\n")
    assert [problem.split(" ")[0] for problem in problems_in(tmp_path)] == ["a.yaml:11:11:", "b.yaml:1:1:"]


def test_an_empty_directory_says_what_to_do(tmp_path):
    (problem,) = problems_in(tmp_path)
    assert "found no policy file (*.yaml, *.yml): put one there" in problem


def test_a_directory_that_is_not_there_is_told(tmp_path):
    (problem,) = problems_in(tmp_path / "nowhere")
    assert problem.endswith("the policy directory cannot be read: No such file or directory")


def test_a_link_that_leads_nowhere_is_told_and_not_skipped(tmp_path):
    write(tmp_path, bank=MINIMAL)
    (tmp_path / "other.yaml").symlink_to("gone.yaml")
    assert problems_in(tmp_path) == ["other.yaml:1:1: the file cannot be read: No such file or directory"]


def test_a_directory_of_too_many_files_is_refused(tmp_path):
    for number in range(201):
        (tmp_path / f"{number}.yaml").touch()
    (problem,) = problems_in(tmp_path)
    assert problem.endswith("found 201 policy files, allowed: at most 200")


def test_a_provider_belongs_to_one_file(tmp_path):
    text = "hosts: [api.bank.test]\n" + MINIMAL
    write(tmp_path, a=text, b=text)
    assert problems_in(tmp_path) == [
        "b.yaml:1:1: provider: found 'bank', which a.yaml has already, allowed: one file each",
        "b.yaml:1:1: hosts: found 'api.bank.test', which a.yaml has already, allowed: one file each",
    ]


def test_two_providers_cannot_share_a_name_in_keys_or_a_port(tmp_path):
    first = "listen: 127.0.0.1:8711\nhosts: [a.test]\n" + MINIMAL
    second = "formerly: bank\nlisten: 127.0.0.1:8711\nhosts: [b.test]\n" + changed("provider: bank", "provider: other")
    write(tmp_path, a=first, b=second)
    assert [problem.split(": ")[1] for problem in problems_in(tmp_path)] == ["provider", "listen"]


def test_a_file_that_cannot_be_read_is_told(tmp_path):
    with pytest.raises(PolicyError) as caught:
        read_policy_file(tmp_path / "gone.yaml")
    assert caught.value.problems[0].endswith("gone.yaml:1:1: the file cannot be read: No such file or directory")
