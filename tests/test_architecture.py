"""The rules of the house, kept as tests, so that no reviewer has to say them again.

A rule is a function from one module to its offences. Each rule is proved twice: it finds the fault in a bad sample and
leaves the good one alone; and it finds nothing in the house. Rooms that are not built yet keep every rule.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath

import pytest

TOP = Path(__file__).resolve().parent.parent

# From left to right. A room sees the rooms of the layers left of it; siblings do not see each other.
LAYERS = (
    ("core",),
    ("ids",),
    ("clock", "randomness", "tasks", "settings"),
    ("secrets", "redis"),
    ("policy", "journal", "limits", "upstream", "webhook_signatures", "telemetry", "transparent"),
    ("engine",),
    ("server", "admin", "tools"),
    ("wiring",),
    ("process",),
    ("cli",),
)
LEFT_OF = {
    room: frozenset(seen for layer in LAYERS[:place] for seen in layer)
    for place, rooms in enumerate(LAYERS)
    for room in rooms
}
SANDBOX = "paywitness_sandbox"  # a package of its own: the referee shares not a line with those it judges
SEES = LEFT_OF | {
    SANDBOX: frozenset(),
    "demo": LEFT_OF["cli"] | {SANDBOX},
    "cli": LEFT_OF["cli"] | {SANDBOX, "demo"},
    "__main__": frozenset({"cli"}),
}

# The few rooms that a rule does not bind. The sandbox may not see our clock, so it has its own of everything.
MAY_READ_TIME = {"clock", SANDBOX, "demo"}
MAY_DRAW = {"randomness", SANDBOX, "demo"}
MAY_START_TASKS = {"tasks", SANDBOX}
MAY_PRINT = {"cli", "demo", SANDBOX}

# What the core may import besides itself: the part of the standard library that only computes.
PURE = set(
    "__future__ abc base64 binascii bisect collections contextlib copy dataclasses datetime decimal difflib email.utils"
    " enum fractions functools hashlib heapq hmac html http.HTTPStatus ipaddress itertools json math operator re string"
    " struct textwrap types typing unicodedata urllib.parse uuid xml.parsers.expat zlib".split()
)
READS_TIME = {
    *(f"time.{name}{ns}" for name in ("time", "monotonic", "perf_counter", "process_time") for ns in ("", "_ns")),
    *("time.clock_gettime", "time.clock_gettime_ns", "time.sleep", "asyncio.sleep"),
    *("datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today", "datetime.date.today"),
}
DRAWS = {
    *("os.urandom", "os.getrandom", "ssl.RAND_bytes", "uuid.uuid1", "uuid.uuid4"),
    "cryptography.hazmat.primitives.ciphers.aead.AESGCM.generate_key",
}
STARTS_TASKS = {"create_task", "ensure_future"}
NAMES_OF_NOTHING = set(
    "util utils common helper helpers manager managers service services handler handlers misc".split()
)
ABBREVIATIONS = set("op ctx cfg resp req msg mgr svc evt".split())

MODULE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70

MACHINE_PATH = re.compile(r"/(?:wor[k]|roo[t])/")
UNFINISHED = re.compile(r"\b(?:TOD[O]|FIXM[E])\b")
NOT_OURS = {".git", ".venv", "build", "dist", ".paywitness", "__pycache__"}
NOT_OURS |= {".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    path: PurePosixPath  # from the top of the repository: proxy/paywitness/core/money.py
    text: str

    @property
    def names(self) -> tuple[str, ...]:
        """proxy/paywitness/core/money.py: paywitness, core, money. A package's own module bears the package's name."""
        names = self.path.with_suffix("").parts
        names = names[1:] if names[0] == "proxy" else names
        return names[:-1] if self.is_package else names

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @property
    def room(self) -> str:
        """Empty for proxy/paywitness/__init__.py. The sandbox is one room."""
        return room_of(self.names)

    @property
    def nodes(self) -> list[ast.AST]:
        return _nodes(self.text)

    def at(self, node: ast.AST, what: str) -> str:
        return f"{self.path}:{getattr(node, 'lineno', 1)}: {what}"


@cache
def _nodes(text: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse(text)))


def room_of(names: Sequence[str]) -> str:
    """The room of a dotted name: paywitness.core.money is in core, paywitness_sandbox.bank.ledger in the sandbox."""
    if names[0] == SANDBOX:
        return SANDBOX
    return names[1] if names[0] == "paywitness" and len(names) > 1 else ""


Rule = Callable[[Module], Iterator[str]]


# --- reading a module


def imports(module: Module) -> Iterator[tuple[ast.AST, str, str]]:
    """Every import, wherever it stands: its node, the full dotted name, and the name it is bound to here."""
    for node in module.nodes:
        if isinstance(node, ast.Import):
            for name in node.names:
                yield node, name.name, name.asname or name.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom):
            package = module.names if module.is_package else module.names[:-1]
            base = [*package[: len(package) - node.level + 1]] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            for name in node.names:
                yield node, f"{origin}.{name.name}", name.asname or name.name


def references(module: Module) -> Iterator[tuple[ast.expr, str]]:
    """Every use of an imported name, in full: `from time import monotonic as m; m()` is a use of time.monotonic."""
    bound: dict[str, str] = {}
    for node, full, name in imports(module):
        whole = isinstance(node, ast.ImportFrom) or full.split(".")[0] != name
        bound[name] = full if whole else name
    for found in module.nodes:
        if isinstance(found, ast.Name | ast.Attribute) and (full_name := _full_name(found, bound)):
            yield found, full_name


def _full_name(node: ast.expr, bound: dict[str, str]) -> str | None:
    if isinstance(node, ast.Name):
        return bound.get(node.id)
    if isinstance(node, ast.Attribute) and (owner := _full_name(node.value, bound)):
        return f"{owner}.{node.attr}"
    return None


def within(name: str, allowed: set[str]) -> bool:
    """Whether the name or anything it lies in is allowed: collections.abc.Mapping lies in collections."""
    parts = name.split(".")
    return any(".".join(parts[:length]) in allowed for length in range(1, len(parts) + 1))


# --- the rules


def imports_only_from_rooms_to_the_left(module: Module) -> Iterator[str]:
    for node, name, _ in imports(module):
        room = room_of(name.split("."))
        if not room or room == module.room:
            continue
        if room not in SEES.get(module.room, frozenset()):
            yield module.at(node, f"{module.room or 'paywitness/__init__.py'} may not see {room} ({name})")


def stands_in_a_room_of_the_plan(module: Module) -> Iterator[str]:
    if module.room and module.room not in SEES:
        yield f"{module.path}: no room is called {module.room}; give it a place in LAYERS, or move it into a room"


def computes_and_does_nothing_else(module: Module) -> Iterator[str]:
    """For the core alone: nothing but values, tables and arithmetic."""
    if module.room != "core":
        return
    for node, name, _ in imports(module):
        if not within(name, PURE | {"paywitness.core"}):
            yield module.at(node, f"core imports {name}, which is not on the list of what only computes")
    for node in module.nodes:
        if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncWith | ast.AsyncFor):
            yield module.at(node, "core is never async")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"open", "input"}:
            yield module.at(node, f"core does no I/O: {node.func.id}()")


def reads_no_time(module: Module) -> Iterator[str]:
    if module.room in MAY_READ_TIME:
        return
    yields = {id(node.func) for node in module.nodes if isinstance(node, ast.Call) and _is_zero(node.args)}
    for node, name in references(module):
        if name in READS_TIME and not (name == "asyncio.sleep" and id(node) in yields):
            yield module.at(node, f"{name} outside clock.py: take a Clock")


def _is_zero(arguments: list[ast.expr]) -> bool:
    """sleep(0) waits for no time: it lets others run."""
    return len(arguments) == 1 and isinstance(arguments[0], ast.Constant) and arguments[0].value == 0


def draws_no_chance(module: Module) -> Iterator[str]:
    if module.room in MAY_DRAW:
        return
    for node, name, _ in imports(module):
        if within(name, {"random", "secrets"}):
            yield module.at(node, f"{name} outside randomness.py: take a Randomness")
    for found, name in references(module):
        if name in DRAWS:
            yield module.at(found, f"{name} outside randomness.py: take a Randomness")


def starts_no_bare_task(module: Module) -> Iterator[str]:
    if module.room in MAY_START_TASKS:
        return
    used = [(node, node.attr) for node in module.nodes if isinstance(node, ast.Attribute)]
    imported = [(node, name.split(".")[-1]) for node, name, _ in imports(module)]
    for node, name in [*used, *imported]:
        if name in STARTS_TASKS:
            yield module.at(node, f"{name} outside tasks.py: a task that nobody holds may vanish; use Tasks.start")


def prints_nothing(module: Module) -> Iterator[str]:
    if module.room in MAY_PRINT:
        return
    for node in module.nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            yield module.at(node, "print() away from the keyboard: log it, or return it")


def repeats_no_group_possessively(module: Module) -> Iterator[str]:
    """In Python 3.11.2, which Debian 12 has, one that fails halfway does not go back to where it began."""
    for node in module.nodes:
        text = node.value if isinstance(node, ast.Constant) else None
        text = text.decode("latin-1") if isinstance(text, bytes) else text
        if isinstance(text, str) and _POSSESSIVE_GROUP.search(text):
            yield module.at(node, "repeats a group possessively: repeat what is in it so, and the group plainly")


_POSSESSIVE_GROUP = re.compile(r"(?<!\\)\)[*+?]\+(?!,)")


def swallows_no_exception_whole(module: Module) -> Iterator[str]:
    for node in module.nodes:
        if isinstance(node, ast.ExceptHandler) and _catches_all(node.type) and all(map(_does_nothing, node.body)):
            yield module.at(node, "catches everything and does nothing: name the exception, or say what became of it")
    calls = {id(node.func): node for node in module.nodes if isinstance(node, ast.Call)}
    for found, name in references(module):
        if name == "contextlib.suppress" and id(found) in calls and any(map(_catches_all, calls[id(found)].args)):
            yield module.at(found, "suppresses everything: name the exception")


def _catches_all(caught: ast.expr | None) -> bool:
    if isinstance(caught, ast.Tuple):
        return any(map(_catches_all, caught.elts))
    return caught is None or (isinstance(caught, ast.Name) and caught.id in {"Exception", "BaseException"})


def _does_nothing(statement: ast.stmt) -> bool:
    is_bare_value = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return is_bare_value or isinstance(statement, ast.Pass | ast.Continue)


def says_what_it_is(module: Module) -> Iterator[str]:
    if not ast.get_docstring(ast.parse(module.text)):
        yield f"{module.path}: no docstring. Say what belongs here, what does not, and the rule that must hold"


def keeps_the_front_door_free_of_code(module: Module) -> Iterator[str]:
    if module.names == ("paywitness",):
        for statement in ast.parse(module.text).body[1:]:
            yield module.at(statement, "paywitness/__init__.py is a docstring and nothing else")


def bears_a_name_of_the_domain(module: Module) -> Iterator[str]:
    for name in module.path.with_suffix("").parts:
        if name in NAMES_OF_NOTHING:
            yield f"{module.path}: {name!r} names nothing. If a function has no room, a domain word is missing"


def spells_its_names_out(module: Module) -> Iterator[str]:
    for node, name in _bound_names(module):
        for part in name.lower().split("_"):
            if part in ABBREVIATIONS:
                yield module.at(node, f"{name}: spell {part!r} out")


def _bound_names(module: Module) -> Iterator[tuple[ast.AST, str]]:
    for node in module.nodes:
        if isinstance(node, ast.arg):
            yield node, node.arg
        elif isinstance(node, Function):
            yield node, node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node, node.attr


def fits_in_the_head(module: Module) -> Iterator[str]:
    lines = len(module.text.splitlines())
    if lines > MODULE_LINES_MAX:
        yield f"{module.path}: {lines} lines, more than {MODULE_LINES_MAX}. Which part of it is a thing of its own?"
    for node in module.nodes:
        if isinstance(node, Function):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES_MAX:
                yield module.at(node, f"{node.name} has {length} lines, more than {FUNCTION_LINES_MAX}")


# --- the rules find faults


def long_function(lines: int) -> str:
    return "def long():\n" + "    pass\n" * (lines - 1)


def case(rule: Rule, path: str, text: str, name: str = "") -> object:
    return pytest.param(rule, path, text, id=f"{rule.__name__}-{name or text.strip().splitlines()[-1]}")


BAD = [
    case(imports_only_from_rooms_to_the_left, "proxy/paywitness/core/x.py", "from paywitness.clock import Clock"),
    case(imports_only_from_rooms_to_the_left, "proxy/paywitness/core/x.py", "from paywitness import clock"),
    case(imports_only_from_rooms_to_the_left, "proxy/paywitness/core/x.py", "from ..clock import Clock"),
    case(imports_only_from_rooms_to_the_left, "proxy/paywitness/core/__init__.py", "from .. import clock"),
    case(imports_only_from_rooms_to_the_left, "proxy/paywitness/tasks.py", "from paywitness.clock import Clock"),
    case(imports_only_from_rooms_to_the_left, "proxy/paywitness/journal/x.py", "import paywitness.policy.book"),
    case(imports_only_from_rooms_to_the_left, "proxy/paywitness/engine/x.py", "import paywitness.server as front"),
    case(
        imports_only_from_rooms_to_the_left,
        "proxy/paywitness/server/x.py",
        "def late():\n    from paywitness.admin import api",
    ),
    case(
        imports_only_from_rooms_to_the_left, "proxy/paywitness_sandbox/x.py", "from paywitness.core.money import Money"
    ),
    case(imports_only_from_rooms_to_the_left, "proxy/paywitness/wiring.py", "from paywitness_sandbox import server"),
    case(imports_only_from_rooms_to_the_left, "proxy/paywitness/demo/x.py", "from paywitness.cli import main"),
    case(imports_only_from_rooms_to_the_left, "proxy/paywitness/__init__.py", "from paywitness.cli import main"),
    case(stands_in_a_room_of_the_plan, "proxy/paywitness/attic/x.py", "", "attic"),
    case(stands_in_a_room_of_the_plan, "proxy/paywitness/attic.py", "", "attic.py"),
    case(computes_and_does_nothing_else, "proxy/paywitness/core/x.py", "import asyncio"),
    case(computes_and_does_nothing_else, "proxy/paywitness/core/x.py", "import logging"),
    case(computes_and_does_nothing_else, "proxy/paywitness/core/x.py", "import time"),
    case(computes_and_does_nothing_else, "proxy/paywitness/core/x.py", "from urllib.request import urlopen"),
    case(computes_and_does_nothing_else, "proxy/paywitness/core/x.py", "from jmespath import compile"),
    case(computes_and_does_nothing_else, "proxy/paywitness/core/x.py", "async def decide(): ..."),
    case(computes_and_does_nothing_else, "proxy/paywitness/core/x.py", "open('it')"),
    case(reads_no_time, "proxy/paywitness/engine/x.py", "import time\ntime.time()"),
    case(reads_no_time, "proxy/paywitness/engine/x.py", "import time as watch\nread = watch.monotonic"),
    case(reads_no_time, "proxy/paywitness/engine/x.py", "from time import perf_counter as tick\ntick()"),
    case(reads_no_time, "proxy/paywitness/core/x.py", "from datetime import datetime, UTC\ndatetime.now(UTC)"),
    case(reads_no_time, "proxy/paywitness/core/x.py", "import datetime\ndatetime.date.today()"),
    case(
        reads_no_time, "proxy/paywitness/server/x.py", "import asyncio\nasync def wait():\n    await asyncio.sleep(1)"
    ),
    case(draws_no_chance, "proxy/paywitness/core/x.py", "import random"),
    case(draws_no_chance, "proxy/paywitness/secrets.py", "from secrets import token_hex"),
    case(draws_no_chance, "proxy/paywitness/secrets.py", "import os\nos.urandom(12)"),
    case(draws_no_chance, "proxy/paywitness/server/x.py", "from uuid import uuid4\nuuid4()"),
    case(starts_no_bare_task, "proxy/paywitness/engine/x.py", "import asyncio\nasyncio.create_task(work())"),
    case(starts_no_bare_task, "proxy/paywitness/engine/x.py", "loop.create_task(work())"),
    case(starts_no_bare_task, "proxy/paywitness/engine/x.py", "from asyncio import ensure_future"),
    case(prints_nothing, "proxy/paywitness/engine/x.py", "print('here')"),
    case(repeats_no_group_possessively, "proxy/paywitness/core/x.py", "re.compile(r'(?:a++b)*+')"),
    case(repeats_no_group_possessively, "proxy/paywitness/core/x.py", "re.compile(rb'(?:a++b)?+c')"),
    case(repeats_no_group_possessively, "proxy/paywitness/core/x.py", "re.compile(rf'(?:{a}b)++')"),
    case(swallows_no_exception_whole, "proxy/paywitness/cli/x.py", "try: act()\nexcept Exception: pass"),
    case(swallows_no_exception_whole, "proxy/paywitness/cli/x.py", "try: act()\nexcept: ..."),
    case(swallows_no_exception_whole, "proxy/paywitness/cli/x.py", "try: act()\nexcept (OSError, BaseException): pass"),
    case(
        swallows_no_exception_whole,
        "proxy/paywitness/cli/x.py",
        "from contextlib import suppress\nwith suppress(Exception): act()",
    ),
    case(says_what_it_is, "proxy/paywitness/core/x.py", "total = 1"),
    case(says_what_it_is, "proxy/paywitness/core/__init__.py", "", "empty"),
    case(keeps_the_front_door_free_of_code, "proxy/paywitness/__init__.py", '"""Paywitness."""\n__version__ = "1"'),
    case(bears_a_name_of_the_domain, "proxy/paywitness/core/utils.py", "", "utils"),
    case(bears_a_name_of_the_domain, "proxy/paywitness/handlers/x.py", "", "handlers"),
    case(spells_its_names_out, "proxy/paywitness/core/x.py", "def decide(ctx): ..."),
    case(spells_its_names_out, "proxy/paywitness/core/x.py", "def decide(*, op_id): ..."),
    case(spells_its_names_out, "proxy/paywitness/core/x.py", "def send_req(): ..."),
    case(spells_its_names_out, "proxy/paywitness/core/x.py", "class Sent:\n    resp: bytes"),
    case(spells_its_names_out, "proxy/paywitness/core/x.py", "self._cfg = settings"),
    case(fits_in_the_head, "proxy/paywitness/core/x.py", "\n" * 501, "501 lines"),
    case(fits_in_the_head, "proxy/paywitness/core/x.py", long_function(71), "71 lines in a function"),
]
GOOD = [
    case(
        imports_only_from_rooms_to_the_left,
        "proxy/paywitness/engine/x.py",
        "from paywitness.journal.base import Journal",
    ),
    case(imports_only_from_rooms_to_the_left, "proxy/paywitness/engine/x.py", "from .gate import Gate"),
    case(imports_only_from_rooms_to_the_left, "proxy/paywitness/cli/x.py", "from paywitness_sandbox import server"),
    case(imports_only_from_rooms_to_the_left, "proxy/paywitness/demo/x.py", "from paywitness import wiring"),
    case(
        imports_only_from_rooms_to_the_left,
        "proxy/paywitness_sandbox/faults/x.py",
        "from paywitness_sandbox.bank.ledger import Ledger",
    ),
    case(computes_and_does_nothing_else, "proxy/paywitness/core/x.py", "from collections.abc import Mapping"),
    case(computes_and_does_nothing_else, "proxy/paywitness/core/x.py", "from urllib import parse"),
    case(computes_and_does_nothing_else, "proxy/paywitness/core/x.py", "from paywitness.core.money import Money"),
    case(computes_and_does_nothing_else, "proxy/paywitness/upstream/x.py", "import asyncio"),
    case(reads_no_time, "proxy/paywitness/clock.py", "import time\ntime.time()"),
    case(reads_no_time, "proxy/paywitness/engine/x.py", "self.time.time()"),
    case(
        reads_no_time,
        "proxy/paywitness/core/x.py",
        "from datetime import datetime, UTC\ndatetime.fromtimestamp(at, UTC)",
    ),
    case(
        reads_no_time, "proxy/paywitness/server/x.py", "import asyncio\nasync def wait():\n    await asyncio.sleep(0)"
    ),
    case(draws_no_chance, "proxy/paywitness/randomness.py", "import random"),
    case(draws_no_chance, "proxy/paywitness/core/x.py", "from uuid import UUID\nUUID(bytes=sixteen)"),
    case(starts_no_bare_task, "proxy/paywitness/tasks.py", "loop.create_task(work())"),
    case(repeats_no_group_possessively, "proxy/paywitness/core/x.py", "re.compile(r'(?:a++b)*c*+')"),
    case(repeats_no_group_possessively, "proxy/paywitness/core/x.py", 're.compile(r"[!$&\'()*+,;=]+")'),
    case(swallows_no_exception_whole, "proxy/paywitness/cli/x.py", "try: act()\nexcept OSError: pass"),
    case(
        swallows_no_exception_whole, "proxy/paywitness/cli/x.py", "try: act()\nexcept Exception as error: tell(error)"
    ),
    case(bears_a_name_of_the_domain, "proxy/paywitness/core/operation.py", "", "operation"),
    case(spells_its_names_out, "proxy/paywitness/core/x.py", "operation = context.request"),
    case(fits_in_the_head, "proxy/paywitness/core/x.py", "\n" * 500, "500 lines"),
    case(fits_in_the_head, "proxy/paywitness/core/x.py", long_function(70), "70 lines in a function"),
]


@pytest.mark.parametrize(("rule", "path", "text"), BAD)
def test_a_rule_finds_the_fault_in_a_bad_sample(rule: Rule, path: str, text: str) -> None:
    assert list(rule(Module(PurePosixPath(path), text)))


@pytest.mark.parametrize(("rule", "path", "text"), GOOD)
def test_a_rule_leaves_a_good_sample_alone(rule: Rule, path: str, text: str) -> None:
    assert list(rule(Module(PurePosixPath(path), text))) == []


# --- the house keeps the rules


@cache
def modules_of(folder: str) -> list[Module]:
    found = sorted((TOP / folder).rglob("*.py"))
    return [Module(PurePosixPath(path.relative_to(TOP).as_posix()), path.read_text("utf-8")) for path in found]


def assert_kept(rule: Rule, *folders: str) -> None:
    offences = [offence for folder in folders for module in modules_of(folder) for offence in rule(module)]
    assert not offences, "\n" + "\n".join(offences)


def test_the_house_is_found() -> None:
    assert {"proxy/paywitness/__init__.py", "proxy/paywitness/clock.py", "proxy/paywitness_sandbox/__init__.py"} <= {
        str(module.path) for module in modules_of("proxy")
    }


def test_every_module_stands_in_a_room_of_the_plan() -> None:
    assert_kept(stands_in_a_room_of_the_plan, "proxy")


def test_a_room_imports_only_from_rooms_left_of_it() -> None:
    assert_kept(imports_only_from_rooms_to_the_left, "proxy")


def test_the_core_only_computes() -> None:
    assert_kept(computes_and_does_nothing_else, "proxy")


def test_time_is_read_only_by_the_clock() -> None:
    assert_kept(reads_no_time, "proxy")


def test_random_values_come_only_from_randomness() -> None:
    assert_kept(draws_no_chance, "proxy")


def test_tasks_are_started_only_where_they_are_held() -> None:
    assert_kept(starts_no_bare_task, "proxy")


def test_only_what_faces_the_keyboard_prints() -> None:
    assert_kept(prints_nothing, "proxy")


def test_no_expression_repeats_a_group_possessively() -> None:
    assert_kept(repeats_no_group_possessively, "proxy")


def test_no_exception_is_swallowed_whole() -> None:
    assert_kept(swallows_no_exception_whole, "proxy", "bench")


def test_every_module_says_what_it_is() -> None:
    assert_kept(says_what_it_is, "proxy", "bench")


def test_the_front_door_is_a_docstring_only() -> None:
    assert_kept(keeps_the_front_door_free_of_code, "proxy")


def test_no_module_bears_a_name_of_nothing() -> None:
    assert_kept(bears_a_name_of_the_domain, "proxy", "bench", "tests")


def test_names_are_spelt_out() -> None:
    assert_kept(spells_its_names_out, "proxy", "bench")


def test_modules_and_functions_fit_in_the_head() -> None:
    assert_kept(fits_in_the_head, "proxy", "bench")


# --- what holds for every file, not only for code


def files_of_the_repository() -> list[Path]:
    """What git tracks or would track; in a copy without git, everything that no tool has made."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    if (TOP / ".git").exists():
        listed = subprocess.run(command, cwd=TOP, check=True, capture_output=True).stdout.decode().split("\0")
        paths = [TOP / name for name in listed if name]
    else:
        paths = [path for path in TOP.rglob("*") if not NOT_OURS & set(path.relative_to(TOP).parts)]
    return [path for path in paths if path.is_file()]


def lines_with(pattern: re.Pattern[str], text: str) -> list[int]:
    return [number for number, line in enumerate(text.splitlines(), 1) if pattern.search(line)]


def assert_nowhere(pattern: re.Pattern[str], why: str) -> None:
    places = [
        f"{path.relative_to(TOP)}:{number}: {why}"
        for path in files_of_the_repository()
        for number in lines_with(pattern, path.read_text("utf-8", errors="replace"))
    ]
    assert not places, "\n" + "\n".join(places)


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        (MACHINE_PATH, "open('/ro" + "ot/.profile')"),
        (MACHINE_PATH, "cd /wo" + "rk/tree"),
        (UNFINISHED, "# TO" + "DO: later"),
        (UNFINISHED, "FIX" + "ME"),
    ],
)
def test_a_pattern_finds_its_bad_line(pattern: re.Pattern[str], line: str) -> None:
    assert lines_with(pattern, f"first\n{line}\n") == [2]


def test_a_pattern_leaves_ordinary_words_alone() -> None:
    assert not lines_with(MACHINE_PATH, "docs/roots/ and framework/ and ./work.py")
    assert not lines_with(UNFINISHED, "todo_list, mastodon")


def test_no_file_names_a_path_of_one_machine() -> None:
    assert_nowhere(MACHINE_PATH, "a path that exists on one machine only")


def test_no_file_is_left_unfinished() -> None:
    assert_nowhere(UNFINISHED, "finish it, or make it an issue")


# --- the docstring of a package is its index


INDEX_WITHOUT_ALL_MAX = 8  # a package with more modules than this names every one of them
_INDEX_LINE = re.compile(r"^(?: {4})?(?P<names>[a-z_]\w*(?:/|\.cjs)?(?:, [a-z_]\w*/?)*) {2,}\S")


def index_of(docstring: str) -> list[str]:
    """The modules that an index names: a name or several, two spaces or more, and what they hold. The formatter takes
    the indent away if every line has it."""
    found = [match["names"] for line in docstring.splitlines() if (match := _INDEX_LINE.match(line))]
    return [name.strip() for names in found for name in names.split(",")]


def contents_of(package: Path) -> set[str]:
    """What an index may name: modules by their name, folders with a slash, other files by their whole name."""
    files = {path.name.removesuffix(".py") for path in package.iterdir() if path.is_file()} - {"__init__", "py.typed"}
    return files | {f"{path.name}/" for path in package.iterdir() if path.is_dir() and path.name != "__pycache__"}


def index_offences(package: Path) -> Iterator[str]:
    docstring = ast.get_docstring(ast.parse((package / "__init__.py").read_text("utf-8")), clean=False) or ""
    named, there = index_of(docstring), contents_of(package)
    yield from (f"{package.name}: the index names {name}, which does not exist" for name in named if name not in there)
    yield from (f"{package.name}: the index names {name} twice" for name in set(named) if named.count(name) > 1)
    if len(there) > INDEX_WITHOUT_ALL_MAX:
        yield from (f"{package.name}: the index does not name {name}" for name in sorted(there - set(named)))


def test_the_docstring_of_a_package_is_its_index() -> None:
    packages = [path.parent for path in sorted((TOP / "proxy").rglob("__init__.py"))]
    assert len(packages) > 20
    offences = [offence for package in packages for offence in index_offences(package)]
    assert not offences, "\n" + "\n".join(offences)


def test_an_index_is_read_and_compared(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    for number in range(8):
        (tmp_path / f"part_{number}.py").touch()
    listed = ", ".join(f"part_{number}" for number in range(7))
    lines = ("A package.", "", f"    {listed}    the parts", "    gone    nothing", "        deeper   no index line")
    (tmp_path / "__init__.py").write_text('"""' + "\n".join(lines) + '\n"""\n')
    said = [offence.split(": ")[1] for offence in index_offences(tmp_path)]
    assert said == [
        "the index names gone, which does not exist",
        "the index does not name inner/",
        "the index does not name part_7",
    ]
