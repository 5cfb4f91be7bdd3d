"""`make shape`: how large the product is, how its names and modules are cut, and what one clean POST passes through.

Figures, not a verdict: `docs/architecture.md` keeps them before and after each redesign, with the aims.
"""

from __future__ import annotations

import ast
import asyncio
import json
import sys
import tempfile
import threading
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType

import click

TOP = Path(__file__).resolve().parent.parent
SMALL_LINES = 60
_WARM_POSTS, _MEASURED_POSTS = 19, 5  # before the first that is measured, code, caches and connections are warm
CHANGE = "OperationChange"  # the class whose construction is a step written to the journal
DEFINITIONS = (
    ("files", "Python modules below proxy/, __init__ included"),
    ("small modules", f"modules of fewer than {SMALL_LINES} lines, __init__ aside"),
    ("class names used twice", "names that two or more class statements bear, private ones and the sandbox included"),
    ("places that construct a journal change", f"calls of journal.base.{CHANGE} in the product"),
    (
        "one clean POST",
        "a charge over a new connection, SQLite journal, warm connection to the sandbox: modules of the",
    ),
    ("", "product with at least one call, and Python calls in them (a coroutine that goes on counts again)"),
)


@dataclass(frozen=True, slots=True)
class Module:
    path: Path
    room: str
    lines: int
    tree: ast.Module

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"


@dataclass(slots=True)
class Trace:
    """What ran while one call was answered."""

    calls: Counter[str] = field(default_factory=Counter)  # by file
    functions: set[CodeType] = field(default_factory=set)

    def __str__(self) -> str:
        return f"{len(self.calls)} files, {len(self.functions)} functions, {self.calls.total()} calls"


def modules_below(source: Path) -> list[Module]:
    """Every module below the source root; its room is the folder or file that stands in its package."""
    found = []
    for path in sorted(source.rglob("*.py")):
        text = path.read_text("utf-8")
        package, *rest = path.relative_to(source).parts
        room = f"{package}/{rest[0]}" if len(rest) > 1 else package
        found.append(Module(path, room, len(text.splitlines()), ast.parse(text)))
    return found


def names_used_twice(modules: list[Module]) -> dict[str, list[str]]:
    places: dict[str, list[str]] = defaultdict(list)
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{module.path.name}:{node.lineno}")
    return {name: found for name, found in sorted(places.items()) if len(found) > 1}


def journal_changes(modules: list[Module]) -> list[str]:
    """Where a journal change is constructed, by modules that import it from the journal."""
    return [
        f"{module.path.relative_to(module.path.parents[2])}:{node.lineno}"
        for module in modules
        if _imports_change(module.tree)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == CHANGE
    ]


def _imports_change(tree: ast.Module) -> bool:
    return any(
        isinstance(node, ast.ImportFrom)
        and (node.module or "").endswith("journal.base")
        and any(name.name == CHANGE for name in node.names)
        for node in ast.walk(tree)
    )


def trace_one_post(product: Path) -> Trace:
    """Run a whole sidecar in this process and count what one clean POST calls, in all threads. Of several, the one with
    the fewest calls: beside the others a loop of the background had its turn."""
    traces: list[Trace] = []
    recording = threading.Event()
    below = f"{product}/"

    def profile(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and recording.is_set() and code.co_filename.startswith(below):
            traces[-1].calls[code.co_filename] += 1
            traces[-1].functions.add(code)

    threading.setprofile(profile)  # the journal's worker starts later, and takes it over
    sys.setprofile(profile)
    try:
        asyncio.run(_posts(recording, traces))
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return min(traces, key=lambda trace: trace.calls.total())


async def _posts(recording: threading.Event, traces: list[Trace]) -> None:
    from contextlib import ExitStack

    from bench.processes import policy_for, start_provider
    from paywitness.option_defaults import Address, Settings
    from paywitness.process import serve

    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        provider = start_provider(stack, TOP, scratch)
        (scratch / "policies").mkdir()
        (scratch / "policies" / "acme.yaml").write_text(policy_for(TOP, provider))
        anywhere = Address("127.0.0.1", 0)
        journal = f"sqlite:///{scratch}/journal.db"
        settings = Settings(
            scratch / "policies", anywhere, anywhere, journal, home=scratch / "home", log_level="error", webhooks=None
        )
        bound: asyncio.Future[Settings] = asyncio.get_running_loop().create_future()
        stop = asyncio.Event()

        def listens(now: Settings, *_: object) -> list[str]:
            bound.set_result(now)
            return []

        serving = asyncio.create_task(serve(settings, {}, print_line=lambda _: None, startup_lines=listens, stop=stop))
        charges = f"{(await bound).listen.url}/acme/v1/charges"
        for number in range(_WARM_POSTS + _MEASURED_POSTS):
            if number >= _WARM_POSTS:
                await asyncio.sleep(0.3)  # what the calls before it left to the background is over
                traces.append(Trace())
                recording.set()
            await asyncio.to_thread(_charge, charges, f"shape-{number}")
            recording.clear()
        stop.set()
        await serving


def _charge(url: str, key: str) -> None:
    body = {"amount": 1099, "currency": "EUR", "source": "tok_ok", "metadata": {"order_id": key}}
    headers = {"Content-Type": "application/json", "Authorization": "Bearer sk_test", "Idempotency-Key": key}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=30) as response:
        if response.status != 200 or response.headers.get("Paywitness-Outcome") != "succeeded":
            raise RuntimeError(f"the charge was not a clean one: {response.status}")
        response.read()


def report(source: Path, trace: Trace | None, *, details: bool) -> Iterator[str]:
    modules = modules_below(source)
    rooms: dict[str, list[Module]] = defaultdict(list)
    for module in modules:
        rooms[module.room].append(module)
    yield f"{'room':34} {'files':>6} {'lines':>7}"
    for room, found in sorted(rooms.items()):
        yield f"{room:34} {len(found):6} {sum(module.lines for module in found):7}"
    yield f"{'all':34} {len(modules):6} {sum(module.lines for module in modules):7}"
    small = [module for module in modules if module.lines < SMALL_LINES and not module.is_package]
    twice = names_used_twice(modules)
    changes = journal_changes(modules)
    yield ""
    yield f"small modules: {len(small)}"
    yield f"class names used twice: {len(twice)}"
    yield f"places that construct a journal change: {len(changes)}"
    if trace is not None:
        yield f"one clean POST: {trace}"
    if details:
        yield from ("", "small:", *(f"  {module.path.relative_to(source)} {module.lines}" for module in small))
        yield from ("twice:", *(f"  {name}: {', '.join(places)}" for name, places in twice.items()))
        yield from ("changes:", *(f"  {place}" for place in changes))
        if trace is not None:
            yield from ("calls by file:", *(f"  {count:4} {name}" for name, count in trace.calls.most_common()))
    yield ""
    for name, meaning in DEFINITIONS:
        yield f"{name + ':' if name else '':40} {meaning}"


@click.command(help=__doc__)
@click.option("--details", is_flag=True, help="Name the modules, names and places that are counted.")
@click.option("--without-post", is_flag=True, help="Read the source only; start nothing.")
def main(*, details: bool, without_post: bool) -> None:
    source = TOP / "proxy"
    trace = None if without_post else trace_one_post(source / "paywitness")
    for line in report(source, trace, details=details):
        click.echo(line)


if __name__ == "__main__":
    main()
