"""Planting: a wrong function in the place of a right one, in this process, for everybody who calls it.

A bug names what it changes by an importable reference: `paywitness.core.inquiry.after_miss`, or
`paywitness.engine.durability.leases.Leases.outlasts`. So it survives reformatting, and renames of locals and
parameters. A reference that leads nowhere, or a pattern that is not found exactly once, raises CannotPlantError.

A function keeps its identity: only its code is exchanged. Modules that imported it, tables that hold it and methods
that are bound already all run the wrong code from then on. Nothing undoes that, so whoever plants a bug does it in a
child process. `prepare` alone changes nothing, and finds out whether the bug can be planted.
"""

from __future__ import annotations
import __future__

import ast
import importlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import CodeType, FunctionType, ModuleType
from typing import Any, Protocol

Function = Callable[..., Any]
Plant = Callable[[], None]  # puts in place what was prepared

_PRODUCT = "paywitness"
_TRAMPOLINE = "def trampoline(*arguments, **named):\n    return {name}(*arguments, **named)\n"


class CannotPlantError(Exception):
    """What the bug would change is not there, or is not as the bug expects it."""


class Change(Protocol):
    """One thing that a bug changes."""

    @property
    def reference(self) -> str: ...

    def prepare(self) -> Plant:
        """Find what is changed and make what takes its place. Raises CannotPlantError; changes nothing."""
        ...


@dataclass(frozen=True)
class Bug:
    name: str
    what: str
    changes: tuple[Change, ...]
    breaks: tuple[str, ...]  # it is caught when one of these is broken, and by nothing less
    between: bool = False  # it needs worlds with the money between operations
    focus: str = ""  # it is hunted in worlds with this focus (`focus.py`)


@dataclass(frozen=True)
class Replaced:
    """A function or method in whose place another one is called. `make` is given the right one and returns the wrong
    one. The wrong one is called with the same arguments, by position wherever the right one allows that."""

    reference: str
    make: Callable[[Function], Function]

    def prepare(self) -> Plant:
        function = function_at(self.reference)
        if function.__closure__:
            raise CannotPlantError(f"{self.reference} is a closure, whose code cannot be exchanged")
        wrong, signature = self.make(_copy_of(function)), inspect.signature(function)
        if _parameter_counts(wrong) != _parameter_counts(function):
            raise CannotPlantError(f"{self.reference}{signature} takes other arguments than what would replace it")

        def call_wrong(*arguments: Any, **named: Any) -> Any:
            bound = signature.bind(*arguments, **named)
            return wrong(*bound.args, **bound.kwargs)

        name = _free_name(function)
        namespace: dict[str, Any] = {}
        exec(compile(_TRAMPOLINE.format(name=name), __file__, "exec"), namespace)

        def plant() -> None:
            function.__globals__[name] = call_wrong
            function.__code__ = namespace["trampoline"].__code__
            function.__defaults__ = function.__kwdefaults__ = None

        return plant


@dataclass(frozen=True)
class Patched:
    """A piece of a function's syntax tree, in whose place another piece stands. `reference` is the function, or the
    class that has it among its methods. `replacement` is asked for every node, and returns what takes the place of the
    one node that it is about. `names` are what the new piece refers to beside the function's own names."""

    reference: str
    replacement: Callable[[ast.AST], ast.AST | None]
    names: Mapping[str, Any] = field(default_factory=dict)

    def prepare(self) -> Plant:
        found = [
            (function, code)
            for function in functions_at(self.reference)
            for code in _patched_codes(function, self.replacement)
        ]
        if len(found) != 1:
            raise CannotPlantError(f"{self.reference} has {len(found)} places that match, and should have one")
        function, code = found[0]
        if code.co_freevars != function.__code__.co_freevars:
            raise CannotPlantError(
                f"{self.reference}: {function.__qualname__} is a closure over other names when patched"
            )
        if taken := self.names.keys() & function.__globals__.keys():
            raise CannotPlantError(f"{self.reference}: its module has {sorted(taken)} already")

        def plant() -> None:
            function.__globals__.update(self.names)
            function.__code__ = code

        return plant


@dataclass(frozen=True)
class Valued:
    """A module's constant that has another value. `change` is given the right value and returns the wrong one; it
    raises CannotPlantError if the right one is not as the bug expects it, and leaves it as it is."""

    reference: str
    change: Callable[[Any], Any]

    def prepare(self) -> Plant:
        owner, name, right = _resolve(self.reference)
        if not isinstance(owner, ModuleType) or callable(right):
            raise CannotPlantError(f"{self.reference} is no constant of a module")
        wrong = self.change(right)

        def plant() -> None:
            for module in [module for key, module in sys.modules.items() if key.partition(".")[0] == _PRODUCT]:
                for holder in [key for key, value in vars(module).items() if value is right]:
                    setattr(module, holder, wrong)
            setattr(owner, name, wrong)

        return plant


def lines_of(change: Change) -> list[tuple[str, range]]:
    """Where the product is changed, as files and lines: the piece that is patched, the function that is replaced, or
    the functions that name a constant."""
    if isinstance(change, Patched):
        found = []
        for function in functions_at(change.reference):
            patch = _Patch(change.replacement)
            patch.visit(_definition_of(function))
            found += [(function.__code__.co_filename, lines) for lines in patch.lines]
        return found
    if isinstance(change, Valued):
        name = change.reference.rpartition(".")[2]
        return [_body_of(function) for function in _product_functions() if name in function.__code__.co_names]
    return [_body_of(function_at(change.reference))]


def _body_of(function: FunctionType) -> tuple[str, range]:
    body = _definition_of(function).body
    return function.__code__.co_filename, range(body[0].lineno, (body[-1].end_lineno or body[-1].lineno) + 1)


def _product_functions() -> Iterator[FunctionType]:
    for key, module in sys.modules.copy().items():
        if key.partition(".")[0] != _PRODUCT:
            continue
        members = [*vars(module).values()]
        members += [member for owner in members if inspect.isclass(owner) for member in vars(owner).values()]
        for function in map(_function_in, members):
            if function is None or function.__name__ == "<lambda>":
                continue
            if function.__code__.co_filename == module.__file__:  # else `dataclass` has made it, or another module
                yield function


def function_at(reference: str) -> FunctionType:
    """The function, method or property's getter of this name."""
    _, _, found = _resolve(reference)
    function = _function_in(found)
    if function is None:
        raise CannotPlantError(f"{reference} is no function that is written in Python")
    return function


def functions_at(reference: str) -> list[FunctionType]:
    """The function of this name, or all methods of the class of this name."""
    _, _, found = _resolve(reference)
    members = vars(found).values() if inspect.isclass(found) else [found]
    functions = [function for member in members if (function := _function_in(member)) is not None]
    # Those that `dataclass` has made have no source.
    written = [one for one in functions if one.__code__.co_filename == vars(sys.modules[one.__module__])["__file__"]]
    if not written:
        raise CannotPlantError(f"{reference} is no function and no class with methods")
    return written


def _resolve(reference: str) -> tuple[Any, str, Any]:
    """What a dotted name leads to: what holds it, its name there, and itself as it stands there."""
    parts = reference.split(".")
    for length in range(len(parts) - 1, 0, -1):
        module_name = ".".join(parts[:length])
        try:
            owner: Any = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name is not None and not f"{module_name}.".startswith(f"{error.name}."):
                raise
            continue
        found: Any = owner
        for name in parts[length:]:
            owner = found
            if name not in vars(owner):
                raise CannotPlantError(f"{reference}: {getattr(owner, '__name__', owner)} has no {name}")
            found = vars(owner)[name]
        return owner, parts[-1], found
    raise CannotPlantError(f"{reference}: there is no such module")


def _function_in(member: Any) -> FunctionType | None:
    if isinstance(member, property):
        member = member.fget
    elif isinstance(member, (staticmethod, classmethod)):
        member = member.__func__
    return member if isinstance(member, FunctionType) else None


def _copy_of(function: FunctionType) -> FunctionType:
    copy = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _parameter_counts(function: Function) -> tuple[int, tuple[str, ...]]:
    """How many arguments it takes by position, and the names of those that it takes by name only."""
    parameters = inspect.signature(function).parameters.values()
    by_position = sum(parameter.kind is not parameter.KEYWORD_ONLY for parameter in parameters)
    return by_position, tuple(sorted(one.name for one in parameters if one.kind is one.KEYWORD_ONLY))


def _free_name(function: FunctionType) -> str:
    return f"_planted_in_{function.__qualname__.replace('.', '_')}"


def _patched_codes(function: FunctionType, replacement: Callable[[ast.AST], ast.AST | None]) -> Iterator[CodeType]:
    """The function's code with one match replaced, for each match."""
    matches = _Patch(replacement)
    matches.visit(_definition_of(function))
    for number in range(len(matches.lines)):
        definition = _definition_of(function)
        _Patch(replacement, number).visit(definition)
        module = ast.fix_missing_locations(ast.Module([definition], []))
        flags = __future__.annotations.compiler_flag
        whole = compile(module, function.__code__.co_filename, "exec", flags, dont_inherit=True)
        code = next(code for code in whole.co_consts if isinstance(code, CodeType) and code.co_name == definition.name)
        yield code.replace(co_qualname=function.__qualname__)


def _definition_of(function: FunctionType) -> ast.FunctionDef | ast.AsyncFunctionDef:
    definition = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    if not isinstance(definition, (ast.FunctionDef, ast.AsyncFunctionDef)):
        raise CannotPlantError(f"{function.__qualname__} is not written as a function")
    ast.increment_lineno(definition, function.__code__.co_firstlineno - 1)
    definition.decorator_list = []
    return definition


class _Patch(ast.NodeTransformer):
    """Counts the nodes that match, and replaces the one of that number."""

    def __init__(self, replacement: Callable[[ast.AST], ast.AST | None], wanted: int | None = None) -> None:
        self._replacement = replacement
        self._wanted = wanted
        self.lines: list[range] = []  # of those that match

    def visit(self, node: ast.AST) -> Any:
        node = self.generic_visit(node)
        wrong = self._replacement(node)
        if wrong is None:
            return node
        first = getattr(node, "lineno", 0)
        self.lines.append(range(first, (getattr(node, "end_lineno", None) or first) + 1))
        return ast.copy_location(wrong, node) if len(self.lines) - 1 == self._wanted else node
