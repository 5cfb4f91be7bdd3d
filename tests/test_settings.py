"""Settings are read once and refused in words that say what to do."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from proxy.core.errors import SettingsError
from proxy.settings import Address, Settings, check_limits, kept_secret, read_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8700", Address("127.0.0.1", 8700)),
        ("[::1]:80", Address("::1", 80)),
        ("localhost:0", Address("localhost", 0)),
    ],
)
def test_an_address_is_read_and_written_back(text: str, address: Address) -> None:
    assert read_address(text, "--listen") == address
    assert str(address) == text


@pytest.mark.parametrize("text", ["", "8700", ":8700", "host:", "host:port", "host:99999"])
def test_a_bad_address_names_its_flag_and_an_example(text: str) -> None:
    with pytest.raises(SettingsError, match=r"--listen .*127\.0\.0\.1:8700"):
        read_address(text, "--listen")


def test_a_journal_url_is_a_path_relative_or_absolute() -> None:
    assert Settings(Path("p"), journal="sqlite:///a/b.db").journal_path == Path("a/b.db")
    assert Settings(Path("p"), journal="sqlite:////a/b.db").journal_path == Path("/a/b.db")


@pytest.mark.parametrize("url", ["redis://localhost", "sqlite://", "sqlite:///", "sqlite://host/x.db", "x.db"])
def test_another_journal_is_refused_with_what_is_possible(url: str) -> None:
    with pytest.raises(SettingsError, match="sqlite:///"):
        _ = Settings(Path("p"), journal=url).journal_path


def test_other_limits_are_refused() -> None:
    assert check_limits("local") == "local"
    with pytest.raises(SettingsError, match="local"):
        check_limits("redis://localhost")


def test_a_secret_is_made_once_and_readable_by_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "secret"
    assert kept_secret(path, lambda: "first") == "first"
    assert kept_secret(path, lambda: "second") == "first"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_an_empty_secret_file_is_never_taken_for_a_secret(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.touch()
    with pytest.raises(SettingsError, match="empty"):
        kept_secret(path, lambda: "fresh")
