"""A pytest plugin: collects once, then runs tests for whoever asks, each time in a fork in which a mutant is planted.

`sessions.py` starts it. Requests come as lines of JSON from the file descriptor that MUTANTS_REQUESTS
names, replies go to that of MUTANTS_REPLIES. Importing and collecting takes longer than most tests, and is the same for
every mutant; a fork gives each a process of its own all the same.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import traceback
from typing import Any

import pytest
from hypothesis import Phase, settings

from tests.mutants.all_mutants import mutant_named
from tests.simulation.planted import plant

_failed: list[str] = []
_passed: list[str] = []


def pytest_configure() -> None:
    """Before test modules are imported. A counterexample is enough: nobody reads the smallest."""
    phases = (Phase.explicit, Phase.generate)
    settings.register_profile("mutants", settings.get_profile("paywitness"), phases=phases, print_blob=False)
    settings.load_profile("mutants")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _failed.append(report.nodeid)
    elif report.when == "call":
        _passed.append(report.nodeid)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool:
    items = {item.nodeid: item for item in session.items}
    gc.collect()
    gc.freeze()
    with (
        os.fdopen(int(os.environ["MUTANTS_REQUESTS"])) as requests,
        os.fdopen(int(os.environ["MUTANTS_REPLIES"]), "w") as replies,
    ):
        replies.write(json.dumps({"collected": list(items)}) + "\n")
        replies.flush()
        for line in requests:
            replies.write(_reply_of_fork(json.loads(line), items) + "\n")
            replies.flush()
    return True


def _reply_of_fork(request: dict[str, Any], items: dict[str, pytest.Item]) -> str:
    """What the fork says, or that it had to be killed, with whatever it had started."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        os.setsid()
        try:
            reply = _run(request, items)
        except BaseException:  # noqa: BLE001  # whatever it was is told, and the fork ends here
            reply = {"error": traceback.format_exc()[-2000:]}
        os.write(write, json.dumps(reply).encode())
        os._exit(0)
    os.close(write)
    try:
        told = select.select([read], [], [], request["within_s"])[0]
        reply_bytes = b"".join(iter(lambda: os.read(read, 65536), b"")) if told else b""
    finally:
        os.close(read)
    if not told:
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return reply_bytes.decode() or json.dumps({"out_of_time": True})


def _run(request: dict[str, Any], items: dict[str, pytest.Item]) -> dict[str, Any]:
    """Run the tests in their order, up to the first that fails."""
    if request["mutant"]:
        plant(mutant_named(request["mutant"]))
    wanted = [items[test] for test in request["tests"] if test in items]
    for number, item in enumerate(wanted):
        following = wanted[number + 1] if number + 1 < len(wanted) else None
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if _failed:
            item.session._setupstate.teardown_exact(None)  # what its modules and its session had set up
            break
    return {"failed": _failed[:1], "passed": len(_passed)}
