"""The planted bugs can still be planted, and the cheapest of them are caught."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.simulation.focus import FOCUSES
from tests.simulation.planted import PAYMENTS, SEEDS_MAX, bug_named, hunted
from tests.simulation.planted_bugs import BUGS
from tests.simulation.planted_money_bugs import MONEY_BUGS
from tests.simulation.planting import Bug, CannotPlantError, Function, Patched, Replaced, Valued


@pytest.mark.parametrize("planted", BUGS, ids=lambda planted: planted.name)
def test_a_planted_bug_still_fits_the_product(planted: Bug) -> None:
    for change in planted.changes:
        change.prepare()  # and goes no further: nothing of it is planted here


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sent_without_the_journal", "new_key_per_retry", "garbage_read_as_a_400"])
def test_a_planted_bug_is_caught(name: str) -> None:
    """The quickest; `python -m tests.simulation.planted` hunts them all."""
    planted = bug_named(name)
    caught = hunted(planted, PAYMENTS, SEEDS_MAX)
    assert caught is not None
    assert caught[1] in planted.breaks


def test_a_bug_is_caught_by_what_it_breaks_and_by_nothing_less() -> None:
    """A task that died, or a budget that was counted wrong, is no proof that a double payment would be seen."""
    seen_so = {"no fault of ours", "no contradiction", "everybody is answered"}
    assert all(planted.breaks and seen_so.isdisjoint(planted.breaks) for planted in BUGS)
    assert len(BUGS) == len({planted.name for planted in BUGS}) >= 40


def test_a_bug_between_operations_is_hunted_in_worlds_that_have_them() -> None:
    assert {planted.name for planted in BUGS if planted.between} >= {planted.name for planted in MONEY_BUGS}
    assert len(MONEY_BUGS) >= 10


def test_a_bug_with_a_focus_is_hunted_in_worlds_that_have_it() -> None:
    focused = [planted for planted in BUGS if planted.focus]
    assert len(focused) >= 8
    assert all(FOCUSES[planted.focus].between == planted.between for planted in focused)


# --- planting itself, in a module that is nobody's

_MODULE = """
LIMITS = {"most": 3}
MOST = LIMITS

def right(count, *, most=3):
    if count > most:
        raise ValueError(count)
    return count

CALLERS = (right,)

class Shop:
    def __init__(self):
        self.open = True

    @property
    def price(self):
        return 10 if self.open else 0

    async def sell(self, count):
        if count > 3:
            return "refused"
        return count * self.price

    def sells(self, count):
        return lambda: right(count)

def most_of():
    return MOST["most"]
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module named as the product's are."""
    path = tmp_path / "shop.py"
    path.write_text(_MODULE)
    spec = importlib.util.spec_from_file_location("paywitness.planted_shop", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "paywitness.planted_shop", module)
    spec.loader.exec_module(module)
    return module


def _one_more(right: Function) -> Function:
    def wrong(many: int, *, most: int = 3) -> int:
        return int(right(many, most=most)) + 1

    return wrong


def _never_refuses(node: ast.AST) -> ast.AST | None:
    return ast.If(ast.Constant(False), node.body, []) if isinstance(node, ast.If) else None


def test_a_replaced_function_is_wrong_for_whoever_holds_it(shop: ModuleType) -> None:
    holder, lazy = shop.CALLERS[0], shop.Shop().sells(2)
    plant = Replaced("paywitness.planted_shop.right", _one_more).prepare()
    assert shop.right(2) == 2  # preparing plants nothing
    plant()
    assert [shop.right(2), shop.right(count=2, most=2), holder(2), lazy()] == [3, 3, 3, 3]
    with pytest.raises(ValueError, match="2"):
        holder(2, most=1)


async def test_a_property_and_an_async_method_can_be_replaced(shop: ModuleType) -> None:
    def dear(right: Function) -> Function:
        def wrong(self: Any) -> int:
            return int(right(self)) * 100

        return wrong

    def twice(right: Function) -> Function:
        async def wrong(self: Any, count: int) -> Any:
            return await right(self, count * 2)

        return wrong

    sold = shop.Shop()
    Replaced("paywitness.planted_shop.Shop.price", dear).prepare()()
    Replaced("paywitness.planted_shop.Shop.sell", twice).prepare()()
    assert await sold.sell(1) == 2_000
    assert await sold.sell(2) == "refused"


async def test_one_piece_of_one_method_can_be_patched(shop: ModuleType) -> None:
    sold = shop.Shop()
    plant = Patched("paywitness.planted_shop.Shop", _never_refuses).prepare()
    assert await sold.sell(4) == "refused"
    plant()
    assert await sold.sell(4) == 40


def test_a_constant_is_changed_under_all_its_names(shop: ModuleType) -> None:
    plant = Valued("paywitness.planted_shop.LIMITS", lambda limits: {**limits, "most": 9}).prepare()
    assert shop.most_of() == 3
    plant()
    assert shop.most_of() == 9


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (Replaced("paywitness.planted_house.right", _one_more), "no such module|has no planted_house"),
        (Replaced("paywitness.planted_shop.left", _one_more), "has no left"),
        (Replaced("paywitness.planted_shop.Shop.right", _one_more), "has no right"),
        (Replaced("paywitness.planted_shop.LIMITS", _one_more), "no function"),
        (Replaced("paywitness.planted_shop.most_of", _one_more), "takes other arguments"),
        (Patched("paywitness.planted_shop.most_of", _never_refuses), "0 places"),
        (Patched("paywitness.planted_shop.Shop", lambda node: node if isinstance(node, ast.Return) else None), "4 pl"),
        (Patched("paywitness.planted_shop.right", _never_refuses, {"LIMITS": 1}), "has .'LIMITS'. already"),
        (Valued("paywitness.planted_shop.right", lambda value: value), "no constant"),
    ],
)
def test_what_cannot_be_planted_is_refused(shop: ModuleType, change: Replaced | Patched | Valued, why: str) -> None:
    with pytest.raises(CannotPlantError, match=why):
        change.prepare()


def test_a_bug_that_cannot_be_planted_ends_the_run() -> None:
    """Else a bug that is not there would be reported as one that survived, or worse."""
    given = [sys.executable, "-m", "tests.simulation", "--plant", "no_such_bug"]
    played = subprocess.run(given, capture_output=True, text=True, check=False)
    assert played.returncode == 2
    assert "no_such_bug" in played.stderr
