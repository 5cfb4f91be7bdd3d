"""The trace that a call belongs to, as its caller's `traceparent` says (W3C Trace Context). The header goes upstream as
it came; here only the trace's id is read, for the log."""

from __future__ import annotations

import re

# version, trace id, parent id, flags; a later version may add more behind a dash, and ff is none.
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?\Z")


def trace_id_of(traceparent: str | None) -> str | None:
    """32 hexadecimal digits; None where there is no header, or not one as it should be."""
    if traceparent is None:
        return None
    found = _TRACEPARENT.match(traceparent)
    return found[1] if found is not None else None
