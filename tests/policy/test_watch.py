"""Hot reload: by content, whole or not at all, and never to another meaning of keys unasked."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from paywitness.policy.book import load_directory
from paywitness.policy.watch import BookRejected, BookReloaded, BookUnchanged, PolicyWatch
from tests.policy.texts import MINIMAL, changed

RETRIES = changed("attempts: 3", "attempts: 5")
ANOTHER_KEY = changed("provider: bank", "provider: bank\nignore: [time]")


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "bank.yaml").write_text(MINIMAL)
    return tmp_path


@pytest.fixture
def watch(directory):
    return PolicyWatch(directory, load_directory(directory))


def test_nothing_new_is_nothing_new(watch):
    assert watch.poll() == BookUnchanged()
    assert watch.poll() == BookUnchanged()


def test_a_good_edit_makes_the_next_book(watch, directory):
    before = watch.book
    (directory / "bank.yaml").write_text(RETRIES)
    found = watch.poll()
    assert isinstance(found, BookReloaded)
    assert found.book is watch.book is not before
    assert found.book.providers["bank"].policies[0].retry_default.attempts == 5
    old, new = before.providers["bank"].revision, found.book.providers["bank"].revision
    assert found.changes == (f"bank: revision {old} -> {new}",)
    assert watch.poll() == BookUnchanged()


def test_an_edit_between_loading_and_the_first_look_is_not_missed(directory):
    book = load_directory(directory)
    (directory / "bank.yaml").write_text(RETRIES)
    assert isinstance(PolicyWatch(directory, book).poll(), BookReloaded)


def test_a_changed_comment_changes_nothing(watch, directory):
    (directory / "bank.yaml").write_text("# hello\n" + MINIMAL)
    assert watch.poll() == BookUnchanged()


def test_a_bad_edit_is_rejected_once_and_the_last_good_book_stays(watch, directory):
    before = watch.book
    (directory / "bank.yaml").write_text(changed("kind: sale", "kind: sail"))
    found = watch.poll()
    assert isinstance(found, BookRejected)
    assert "operations.pay.kind: found 'sail'" in found.problems[0]
    assert watch.poll() == BookUnchanged()
    assert watch.book is before
    (directory / "bank.yaml").write_text(changed("kind: sale", "kind: sold"))
    assert isinstance(watch.poll(), BookRejected)


def test_an_edit_taken_back_is_a_reload_without_changes(watch, directory):
    bad = changed("kind: sale", "kind: sail")
    (directory / "bank.yaml").write_text(bad)
    watch.poll()
    (directory / "bank.yaml").write_text(MINIMAL)
    found = watch.poll()
    assert isinstance(found, BookReloaded)
    assert found.changes == ()
    assert watch.poll() == BookUnchanged()
    (directory / "bank.yaml").write_text(bad)
    assert isinstance(watch.poll(), BookRejected), "a mistake that comes back is told again"


def test_one_bad_file_keeps_all_of_the_new_book_out(watch, directory):
    (directory / "bank.yaml").write_text(RETRIES)
    (directory / "other.yaml").write_text("provider: other\n")
    assert isinstance(watch.poll(), BookRejected)
    assert watch.book.providers["bank"].policies[0].retry_default.attempts == 3


def test_an_edit_that_changes_identity_is_refused_unless_the_file_accepts_it(watch, directory):
    (directory / "bank.yaml").write_text(ANOTHER_KEY)
    found = watch.poll()
    assert isinstance(found, BookRejected)
    assert found.problems == (
        f"{directory}/bank.yaml: operations.pay.ignore: was [], is [time]; "
        "calls would change their identity: to mean it, write 'identity_change: accepted'",
    )
    (directory / "bank.yaml").write_text("identity_change: accepted\n" + ANOTHER_KEY)
    accepted = watch.poll()
    assert isinstance(accepted, BookReloaded)
    assert accepted.changes[1] == ("bank: identity changed: operations.pay.ignore: was [], is [time]")


def test_a_provider_does_not_vanish_unasked(watch, directory):
    (directory / "other.yaml").write_text("hosts: [other.test]\n" + changed("provider: bank", "provider: other"))
    found = watch.poll()
    assert isinstance(found, BookReloaded)
    assert found.changes[0].startswith("other: new, revision ")
    (directory / "bank.yaml").unlink()
    gone = watch.poll()
    assert isinstance(gone, BookRejected)
    assert "provider bank is gone" in gone.problems[0]
    text = (directory / "other.yaml").read_text()
    (directory / "other.yaml").write_text("identity_change: accepted\n" + text)
    accepted = watch.poll()
    assert isinstance(accepted, BookReloaded)
    assert "bank: gone" in accepted.changes


def test_an_emptied_or_removed_directory_is_rejected_once(watch, directory):
    (directory / "bank.yaml").unlink()
    assert isinstance(watch.poll(), BookRejected)
    assert watch.poll() == BookUnchanged()
    directory.rmdir()
    assert isinstance(watch.poll(), BookRejected)
    assert watch.poll() == BookUnchanged()
    assert list(watch.book.providers) == ["bank"]


def mounted(tmp_path: Path, version: str, text: str) -> None:
    """A ConfigMap as the kubelet mounts it: a dated directory, `..data` swapped to it, files linked through it."""
    dated = tmp_path / f"..{version}"
    dated.mkdir()
    (dated / "bank.yaml").write_text(text)
    fresh = tmp_path / "..data_tmp"
    fresh.symlink_to(dated.name)
    os.replace(fresh, tmp_path / "..data")
    link = tmp_path / "bank.yaml"
    if not link.is_symlink():
        link.symlink_to("..data/bank.yaml")


def test_a_config_map_swapped_by_symbolic_links_is_seen(tmp_path):
    mounted(tmp_path, "2026_01_01", MINIMAL)
    watch = PolicyWatch(tmp_path, load_directory(tmp_path))
    assert watch.poll() == BookUnchanged()
    mounted(tmp_path, "2026_01_02", RETRIES)
    found = watch.poll()
    assert isinstance(found, BookReloaded)
    assert found.book.providers["bank"].policies[0].retry_default.attempts == 5
