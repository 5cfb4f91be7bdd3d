"""What the bank says when it will not: each dialect and the control routes put it into their own words."""

from __future__ import annotations


class Refused(Exception):
    """The bank will not do it; `conflict` says that the state forbids it, rather than the request."""

    def __init__(self, code: str, message: str, *, conflict: bool = True) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.conflict = conflict


class NotFound(Exception):
    """No such charge, refund, payout or event."""
