"""What every test stands on: the profile of the property tests. Fixtures live beside the rooms that need them."""

from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.leftovers import kill_leftovers
from tests.randomness import restart_seeds

# A busy machine is not a counterexample, so single examples have no deadline: pytest's own timeout bounds each test.
# The same examples in every run: a red run is a change's doing. `--hypothesis-profile explore` looks for new ones.
settings.register_profile("paywitness", deadline=None, print_blob=True, derandomize=True)
settings.register_profile("explore", deadline=None, print_blob=True, max_examples=2_000)
settings.load_profile("paywitness")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Each test draws the same, whichever tests ran before it."""
    restart_seeds()


@pytest.fixture(scope="session", autouse=True)
def nothing_left_running(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that fails on its way may leave a server behind; one that passes must not."""
    yield
    left = kill_leftovers()
    assert not left or request.session.testsfailed, f"left running: {left}"


# Files whose tests wait for leases, kills and settling: half a minute each, most of it spent waiting.
_LONGEST = (
    *("e2e/test_resolution.py", "e2e/test_events.py", "e2e/test_storm.py", "e2e/test_fleet_outage.py"),
    *("e2e/test_fleet_crashes.py", "e2e/test_failover.py", "e2e/test_redis.py", "e2e/test_slow_callers.py"),
    *("deploy/test_alerts.py", "chaos/test_chaos.py", "engine/test_storm.py", "demo/test_demo.py"),
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The quick tier runs on one event loop and plain sockets; the full one repeats it all on uvloop and over TLS.

    Each worker begins with its share of the longest: none is left for the end, when the others have nothing to do."""
    for item in items:
        if "[uvloop" in item.nodeid or item.nodeid.endswith("https]"):
            item.add_marker(pytest.mark.slow)
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    longest = [item for item in items if item.nodeid.partition("::")[0].endswith(_LONGEST)]
    others = [item for item in items if not item.nodeid.partition("::")[0].endswith(_LONGEST)]
    share = -(-len(others) // workers)
    items[:] = [
        item
        for worker in range(workers)
        for item in (*longest[worker::workers], *others[worker * share : (worker + 1) * share])
    ]
