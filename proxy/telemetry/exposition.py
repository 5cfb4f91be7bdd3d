"""How a scrape is written: by the library, one family after the other.

In pieces, because it takes milliseconds and is done in the loop's thread: calls go on between two of them. A thread of
its own would take the interpreter from them for longer, and wait longer for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

_END = b"# EOF\n"  # of the newer format, which may stand only once

Encoder = Callable[[Collector], bytes]


class _One(Collector):
    """A family by itself, as an encoder asks for it."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterable[Metric]:
        return (self._family,)


def pieces(registry: CollectorRegistry, encode: Encoder) -> Iterator[bytes]:
    """What the encoder would write of the registry, family by family."""
    ends = False
    for family in registry.collect():
        written = encode(_One(family))
        ends = written.endswith(_END)
        yield written.removesuffix(_END)
    if ends:
        yield _END
