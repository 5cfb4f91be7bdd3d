"""The names the provider gives out: `ch_...`, `re_...`, `po_...`, `evt_...`."""

from __future__ import annotations

import hashlib


class Naming:
    def __init__(self, salt: str) -> None:
        self._salt = salt
        self._given = 0

    def new(self, prefix: str) -> str:
        """Looks like a provider's, is the same for the same salt, and never repeats."""
        self._given += 1
        digest = hashlib.blake2s(f"{self._salt}:{self._given}".encode(), digest_size=10).hexdigest()
        return f"{prefix}_{digest}"
