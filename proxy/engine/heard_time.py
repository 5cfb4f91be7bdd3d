"""The journal's time, as far as it was heard here. What decides whether something has settled is counted by it alone:
this machine's own wall clock may be set, and another sidecar's may be ahead or behind.
"""

from __future__ import annotations

from proxy.clock import Clock


class HeardTime:
    """The latest time that the journal told, moved on by a clock that counts suspension. It never goes back."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._at: float | None = None
        self._boot = 0.0

    def heard(self, at: float) -> None:
        """The journal has just said how late it is: a moment ago, for its answer took its time. We are behind it."""
        if self._at is None or at > self.now():
            self._at, self._boot = at, self._clock.boot()

    @property
    def known(self) -> bool:
        return self._at is not None

    def now(self) -> float:
        """Before anything was heard: our own wall clock's, which is good for nothing that must have settled."""
        if self._at is None:
            return self._clock.now()
        return self._at + (self._clock.boot() - self._boot)
