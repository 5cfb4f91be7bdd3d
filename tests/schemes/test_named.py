"""Names, listed options, and the purity of the room."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from proxy.schemes.named import SCHEMES, scheme_named
from tests.test_architecture import PURE, Module, imports, within

ROOM = Path(__file__).resolve().parents[2] / "proxy" / "schemes"


@pytest.mark.parametrize("name", SCHEMES)
def test_every_name_makes_the_scheme_that_bears_it(name: str) -> None:
    assert scheme_named(name, {}).name == name


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
    for path in sorted(ROOM.glob("*.py")):
        module = Module(PurePosixPath("proxy/schemes") / path.name, path.read_text("utf-8"))
        for _, name, _ in imports(module):
            assert within(name, PURE | {"proxy.core", "proxy.schemes"}), f"{path.name} imports {name}"
