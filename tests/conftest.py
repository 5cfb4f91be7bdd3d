"""What every test stands on: the profile of the property tests. Fixtures live beside the rooms that need them."""

import pytest
from hypothesis import settings

# A busy machine is not a counterexample, so single examples have no deadline: pytest's own timeout bounds each test.
# The same examples in every run: a red run is a change's doing. `--hypothesis-profile explore` looks for new ones.
settings.register_profile("paywitness", deadline=None, print_blob=True, derandomize=True)
settings.register_profile("explore", deadline=None, print_blob=True, max_examples=2_000)
settings.load_profile("paywitness")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The quick tier runs on one event loop and plain sockets; the full one repeats it all on uvloop and over TLS."""
    for item in items:
        if "[uvloop" in item.nodeid or item.nodeid.endswith("https]"):
            item.add_marker(pytest.mark.slow)
