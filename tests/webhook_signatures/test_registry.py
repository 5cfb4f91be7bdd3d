"""Names, listed options, and the purity of the room."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from paywitness.webhook_signatures.registry import SCHEMES, scheme_named
from tests.test_architecture import PURE, Module, imports, within
from tests.webhook_signatures.signing import NEEDED

ROOM = Path(__file__).resolve().parents[2] / "proxy" / "schemes"


@pytest.mark.parametrize("name", SCHEMES)
def test_every_name_makes_the_scheme_that_bears_it(name: str) -> None:
    assert scheme_named(name, NEEDED.get(name, {})).name == name


@pytest.mark.parametrize("name", NEEDED)
def test_a_scheme_is_not_made_without_what_it_must_be_told(name: str) -> None:
    for option in NEEDED[name]:
        with pytest.raises(ValueError, match=f"found no option '{option}' of {name}, it is required"):
            scheme_named(name, {})


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("paypal", "environment", "test"),
        ("unsigned", "body", "xml"),
        ("token", "header", "a b"),
        ("square", "url", "x"),
        ("dlocal", "login", "a b"),
    ],
)
def test_an_option_that_cannot_be_put_in_force_is_refused(name: str, option: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"{option}: found '{value}', allowed: "):
        scheme_named(name, {option: value})


def test_what_proves_too_little_is_marked() -> None:
    assert {name for name, known in SCHEMES.items() if known.hint_only} == {"unsigned", "midtrans"}


@pytest.mark.parametrize("name", SCHEMES)
def test_every_scheme_and_option_is_described(name: str) -> None:
    assert SCHEMES[name].description
    assert all(option.description for option in SCHEMES[name].options)


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"found the scheme 'strype', allowed: one of hmac_sha256, .*, stripe"):
        scheme_named("strype", {})


@pytest.mark.parametrize("name", ["stripe", "standard"])
def test_a_scheme_without_options_takes_none(name: str) -> None:
    with pytest.raises(ValueError, match=f"found the option 'header' of {name}, allowed: none"):
        scheme_named(name, {"header": "X"})


def test_the_room_only_computes() -> None:
    """RSA is the library's, in one file; the library does no I/O either."""
    for path in sorted(ROOM.glob("*.py")):
        allowed = {"paywitness.core", "paywitness.webhook_signatures"} | (
            {"cryptography"} if path.name == "public_key.py" else set()
        )
        module = Module(PurePosixPath("proxy/paywitness/webhook_signatures") / path.name, path.read_text("utf-8"))
        for _, name, _ in imports(module):
            assert within(name, PURE | allowed), f"{path.name} imports {name}"
