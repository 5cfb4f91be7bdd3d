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
    ("ids", "repeated_lines"),
    ("clock", "randomness", "tasks", "option_defaults"),
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
    case(imports_only_from_rooms_to_the_left, "proxy/paywitness/demo/x.py", "from paywitness.cli.main import main"),
    case(imports_only_from_rooms_to_the_left, "proxy/paywitness/__init__.py", "from paywitness.cli.main import main"),
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


# --- a class has a name of its own


def classes_named_twice(modules: list[Module]) -> list[str]:
    """Every class whose name another class has too, wherever either of them stands."""
    places: dict[str, list[str]] = {}
    for module in modules:
        for node in module.nodes:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(module.at(node, f"class {node.name}, a name used twice"))
    return [place for found in places.values() if len(found) > 1 for place in found]


def test_a_class_name_that_is_used_twice_is_found() -> None:
    charge = Module(PurePosixPath("proxy/paywitness/core/charge.py"), "class Charge: pass\nclass _Row: pass")
    ledger = Module(
        PurePosixPath("proxy/paywitness_sandbox/ledger.py"), "def made():\n    class Charge: pass\nclass Ledger: pass"
    )
    assert [place.rpartition(":")[0] for place in classes_named_twice([charge, ledger])] == [
        "proxy/paywitness/core/charge.py:1",
        "proxy/paywitness_sandbox/ledger.py:2",
    ]


def test_class_names_that_differ_are_left_alone() -> None:
    text = "class Charge: pass\nclass Charges: pass\ncharge = Charge()"
    assert not classes_named_twice([Module(PurePosixPath("proxy/paywitness/core/charge.py"), text)])


def test_no_class_name_is_used_twice() -> None:
    places = classes_named_twice(modules_of("proxy"))
    assert not places, "\n" + "\n".join(places)


# --- a default of the settings is written once


def numbers_of_settings(settings: Module) -> dict[str, float]:
    """The defaults of Settings that are numbers, by the names of their fields without a unit."""
    classes = [node for node in settings.nodes if isinstance(node, ast.ClassDef) and node.name == "Settings"]
    fields = [node for found in classes for node in found.body if isinstance(node, ast.AnnAssign)]
    found = {_without_unit(ast.unparse(field.target)): _number(field.value) for field in fields}
    return {name: number for name, number in found.items() if number}


def repeated_defaults(module: Module, numbers: dict[str, float]) -> Iterator[str]:
    """Each parameter, field or option of such a name that has a default of its own, and each constant of such a name
    that has the same number. Zero is no default of its own: it says that there is none."""
    for node in module.nodes:
        named = [*_parameters_with_number(node), *_fields_with_number(node), *_options_with_default(node)]
        named += [name for name, number in _constants(node) if number == numbers.get(_without_unit(name))]
        for name in named:
            if _without_unit(name) in numbers:
                yield module.at(
                    node, f"{name} has a default of its own: take it from paywitness.option_defaults.DEFAULTS"
                )


def _parameters_with_number(node: ast.AST) -> list[str]:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        return []
    given = node.args
    positional = [*given.posonlyargs, *given.args][::-1]
    pairs = [
        *zip(positional, given.defaults[::-1], strict=False),
        *zip(given.kwonlyargs, given.kw_defaults, strict=True),
    ]
    return [parameter.arg for parameter, default in pairs if _number(default)]


def _fields_with_number(node: ast.AST) -> list[str]:
    body = node.body if isinstance(node, ast.ClassDef) else []
    return [ast.unparse(field.target) for field in body if isinstance(field, ast.AnnAssign) and _number(field.value)]


def _options_with_default(node: ast.AST) -> list[str]:
    """`click.option("--lease-seconds", default=30.0)`."""
    if not isinstance(node, ast.Call) or not node.args or not isinstance(node.args[0], ast.Constant):
        return []
    option, given = str(node.args[0].value), [word.value for word in node.keywords if word.arg == "default"]
    literal = [value for value in given if _number(value) or (isinstance(value, ast.Constant) and value.value)]
    return [option] if option.startswith("--") and literal else []


def _constants(node: ast.AST) -> list[tuple[str, float]]:
    """The numbers that a module gives names to."""
    body = node.body if isinstance(node, ast.Module) else []
    assigned = [(line.targets[0], line.value) for line in body if isinstance(line, ast.Assign)]
    assigned += [(line.target, line.value) for line in body if isinstance(line, ast.AnnAssign) and line.value]
    return [(ast.unparse(target), _number(value)) for target, value in assigned]


def _without_unit(name: str) -> str:
    """lease_s, _LEASE_S and --lease-seconds are one name: lease."""
    return name.strip("-_").replace("-", "_").lower().removesuffix("_seconds").removesuffix("_s")


def _number(value: ast.expr | None) -> float:
    """The number that an expression writes out: 30.0, 1_000, 30 * 86400.0. 0 if it writes none."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult):
        return _number(value.left) * _number(value.right)
    written = value.value if isinstance(value, ast.Constant) else None
    return float(written) if isinstance(written, int | float) and not isinstance(written, bool) else 0.0


def numbers_in(expression: ast.expr | None) -> list[float]:
    """Every number that an expression writes out, at whatever depth. Zero is none."""
    found = [_number(node) for node in ast.walk(expression) if isinstance(node, ast.expr)] if expression else []
    return [number for number in found if number]


SETTINGS_SAMPLE = Module(
    PurePosixPath("proxy/paywitness/option_defaults.py"),
    "class Settings:\n    policies: Path\n    lease_s: float = 30.0\n    retention_s: float = 30 * 86400.0\n"
    "    calls_max: int = 1_000\n    limits: str = 'local'\n    drain_delay_s: float = 0.0",
)


def test_the_numbers_of_the_settings_are_found() -> None:
    assert numbers_of_settings(SETTINGS_SAMPLE) == {"lease": 30.0, "retention": 2_592_000.0, "calls_max": 1000.0}


@pytest.mark.parametrize(
    "text",
    [
        "def hold(token, lease_s=30.0): ...",
        "def hold(*, lease_s: float = 20): ...",
        "hold = lambda lease_s=30.0: lease_s",
        "class Bounds:\n    calls_max: int = 1_000",
        "LEASE_S = 30.0",
        "_RETENTION_S: Final = 30 * 86_400",
        "click.option('--lease-seconds', default=30.0)",
        "click.option('--retention', default='30d')",
    ],
)
def test_a_default_that_is_repeated_is_found(text: str) -> None:
    module = Module(PurePosixPath("proxy/paywitness/engine/leases.py"), text)
    assert len(list(repeated_defaults(module, numbers_of_settings(SETTINGS_SAMPLE)))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "def hold(token, lease_s): ...",
        "def hold(lease_s=DEFAULTS.lease_s, relay_lease_s=180.0, lease_s_max=5): ...",
        "def claim(lease_s: float = 0.0): ...",
        "class Bounds:\n    calls_max: int",
        "CURSOR_LEASE_S = 30.0\nlease_s = settings.lease_s",
        "CALLS_MAX = 8",  # of another thing: a constant is a repetition only if it has the number too
        "hold(lease_s=12.0)",  # a value that is given, and no default
        "click.option('--lease-seconds', default=DEFAULTS.lease_s)\nclick.option('--seed', default=1)",
    ],
)
def test_a_default_that_is_another_or_taken_from_the_settings_is_left_alone(text: str) -> None:
    module = Module(PurePosixPath("proxy/paywitness/engine/leases.py"), text)
    assert not list(repeated_defaults(module, numbers_of_settings(SETTINGS_SAMPLE)))


def test_no_default_of_the_settings_is_written_elsewhere() -> None:
    product = modules_of("proxy/paywitness")
    settings = next(module for module in product if module.path.name == "option_defaults.py")
    numbers = numbers_of_settings(settings)
    assert len(numbers) > 5
    places = [place for module in product if module is not settings for place in repeated_defaults(module, numbers)]
    assert not places, "\n" + "\n".join(places)


# --- a default of a policy is written once


POLICY_DEFAULTS = "paywitness.core.policy_defaults"


def policy_values(core: Sequence[Module]) -> dict[str, tuple[Module, ast.ClassDef]]:
    """The classes of which a policy consists: Provider, its bases, and every class that one of its fields names, and so
    on. No class name is used twice, so a name is enough."""
    classes = {node.name: (module, node) for module in core for node in module.nodes if isinstance(node, ast.ClassDef)}
    found: dict[str, tuple[Module, ast.ClassDef]] = {}
    waiting = ["Provider"]
    while waiting:
        name = waiting.pop()
        if name in classes and name not in found:
            found[name] = classes[name]
            node = classes[name][1]
            types = [*node.bases, *(line.annotation for line in node.body if isinstance(line, ast.AnnAssign))]
            waiting += [part.id for type_ in types for part in ast.walk(type_) if isinstance(part, ast.Name)]
    return found


def numbers_of_policy_values(core: Sequence[Module]) -> Iterator[str]:
    """Each field of such a class that writes its default out, also as `ScopeRule(10)`."""
    for module, node in policy_values(core).values():
        for line in node.body:
            if isinstance(line, ast.AnnAssign) and numbers_in(line.value):
                yield module.at(
                    line, f"{node.name}.{ast.unparse(line.target)} has a number: name it in {POLICY_DEFAULTS}"
                )


def numbers_of_parsers(module: Module) -> Iterator[str]:
    """Each default that a parser writes out: `section.read_or("misses", whole_number(1, 10), 3)`."""
    for node in module.nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "read_or":
            given = [*node.args[2:], *(word.value for word in node.keywords if word.arg == "default")]
            texts = [part.value for value in given for part in ast.walk(value) if isinstance(part, ast.Constant)]
            if any(map(numbers_in, given)) or any(isinstance(text, str) and text.isdigit() for text in texts):
                yield module.at(node, f"a default with a number: name it in {POLICY_DEFAULTS}")


POLICY_SAMPLE = """
class Provider(Named):
    policies: tuple[Policy, ...]
class Named:
    weight: int = 7
class Policy:
    attempts: int = 3
    cap_s: float = policy_defaults.RETRY_CAP_S
    opens_from: int = 0
    observe: bool = True
    budget: BudgetRules | None = None
class BudgetRules:
    account: ScopeRule = ScopeRule(floor=5)
    schedule_s: tuple[float, ...] = (2.0, 10.0)
class Lane:
    places: int = 4
"""


def test_a_number_in_a_value_of_a_policy_is_found() -> None:
    module = Module(PurePosixPath("proxy/paywitness/core/policy.py"), POLICY_SAMPLE)
    found = sorted(offence.split()[1] for offence in numbers_of_policy_values([module]))
    assert found == ["BudgetRules.account", "BudgetRules.schedule_s", "Named.weight", "Policy.attempts"]


@pytest.mark.parametrize(
    ("text", "offences"),
    [
        ("section.read_or('misses', whole_number(1, 10), 3)", 1),
        ("section.read_or('misses', whole_number(1, 10), default=3)", 1),
        ("int(section.read_or('refuse_with', choice_of('401', '403'), '401'))", 1),
        ("section.read_or('misses', whole_number(1, 10), policy_defaults.ASK_MISSES)", 0),
        ("section.read_or('required', boolean, default=False)", 0),
    ],
)
def test_a_number_as_the_default_of_a_parser_is_found(text: str, offences: int) -> None:
    module = Module(PurePosixPath("proxy/paywitness/policy/block_parsers/inquiries.py"), text)
    assert len(list(numbers_of_parsers(module))) == offences


def test_the_numbers_of_a_policy_stand_in_policy_defaults_alone() -> None:
    core = modules_of("proxy/paywitness/core")
    assert {"RetryRule", "UpstreamTimeouts", "ScopeRule", "CircuitRules", "Inquiry"} <= policy_values(core).keys()
    places = [*numbers_of_policy_values(core)]
    places += [place for module in modules_of("proxy/paywitness/policy") for place in numbers_of_parsers(module)]
    assert not places, "\n" + "\n".join(places)


def test_every_default_of_a_policy_is_used() -> None:
    product = modules_of("proxy/paywitness")
    defaults = next(module for module in product if module.path.name == "policy_defaults.py")
    named = {f"{POLICY_DEFAULTS}.{name.id}" for name in defaults.nodes if isinstance(name, ast.Name)}
    used = {name for module in product for _, name in references(module)}
    assert len(named) > 30
    assert named <= used, "\n" + "\n".join(sorted(named - used))
