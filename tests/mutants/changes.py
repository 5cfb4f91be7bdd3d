"""How mutants are written down: a function, a piece of it as it is written, and what stands there instead.

A piece is compared as syntax, so that white space, line breaks and comments do not count. What is planted, and how, is
`tests.simulation.planting`; a mutant is a bug of that kind, except that anything may catch it.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable
from typing import Any

from tests.simulation.planting import Bug, CannotPlantError, Change, Patched


def mutant(name: str, what: str, *changes: Change) -> Bug:
    """A bug that any test and any promise may catch. `what` says what the product then does."""
    return Bug(name, what, changes, breaks=())


def swapped(reference: str, right: str, wrong: str, **names: Any) -> Patched:
    """In a function (or a class, in one of its methods) this expression or statement stands for that one. `names` are
    what the wrong one refers to beside the function's own names."""
    return Patched(f"paywitness.{reference}", _in_place_of(_piece(right), _piece(wrong)), names)


def argument(reference: str, right: str, wrong: str, **names: Any) -> Patched:
    """As `swapped`, of one named argument of a call: `lease_s=5.0`."""
    return Patched(f"paywitness.{reference}", _in_place_of(_named(right), _named(wrong)), names)


def left_out(reference: str, statement: str) -> Patched:
    """In a function this call, or this statement, is not there."""
    right = _piece(statement)
    return Patched(
        f"paywitness.{reference}",
        _in_place_of(right, ast.Constant(None) if isinstance(right, ast.expr) else ast.Pass()),
    )


def _piece(text: str) -> ast.AST:
    try:
        return ast.parse(f"({text})", mode="eval").body
    except SyntaxError:
        statements = ast.parse(text).body
    if len(statements) != 1:
        raise CannotPlantError(f"one expression or statement is one piece: {text}")
    return statements[0]


def _named(text: str) -> ast.AST:
    call = _piece(f"call({text})")
    if not isinstance(call, ast.Call) or len(call.keywords) != 1 or call.args:
        raise CannotPlantError(f"this is not one named argument: {text}")
    return call.keywords[0]


def _in_place_of(right: ast.AST, wrong: ast.AST) -> Callable[[ast.AST], ast.AST | None]:
    wanted = ast.dump(right)

    def replacement(node: ast.AST) -> ast.AST | None:
        if type(node) is not type(right) or ast.dump(node) != wanted:
            return None
        return copy.deepcopy(wrong)

    return replacement
