"""The server's view of the engine: `CallHandler`, and the streamed reply that it may return.

The engine does not import the server. Any object of this shape will do.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Protocol

from paywitness.core.call import Call, Headers
from paywitness.core.reply import Reply


class ServerStreamedReply(Protocol):
    """A reply whose body is still coming. Its iterator raises if the body is cut off."""

    @property
    def status_code(self) -> int: ...

    @property
    def headers(self) -> Headers:
        """End-to-end headers. A `Content-Length` among them is a promise that the server holds the body to."""
        ...

    @property
    def body(self) -> AsyncIterator[bytes]: ...

    @property
    def reason(self) -> bytes | None:
        """The reason phrase; None for the usual one of the status."""
        ...

    @property
    def trailers(self) -> Callable[[], Headers]:
        """The headers behind the body. Called when the body is over."""
        ...


class CallHandler(Protocol):
    def knows(self, provider: str) -> bool:
        """Whether a policy names this provider."""
        ...

    def provider_at(self, host: str) -> str | None:
        """The provider whose policy names this host."""
        ...

    def in_shadow_mode(self, provider: str) -> bool:
        """Whether its calls must pass exactly as they came."""
        ...

    def might_be_operation(self, provider: str, method: str, segments: tuple[str, ...]) -> bool:
        """Whether the route is an operation's, whatever its body may say. Called before the body is read."""
        ...

    async def reply_to(self, call: Call, still_there: Callable[[], bool]) -> Reply:
        """Serve a call whose whole body is in `call.body`. `still_there`: whether the caller can still get a reply."""
        ...

    async def forward(
        self, call: Call, body: AsyncIterator[bytes] | None, length: int | None
    ) -> Reply | ServerStreamedReply:
        """Forward a call that is no operation, once. `length` is None if the caller did not say it.

        The body's iterator raises if the caller's body ends early. That exception must come out of this method.
        """
        ...

    async def describe(self, operation_id: str, call: Call) -> Reply:
        """The facts of an operation that a caller may know. `call` is the request, with the caller's credential."""
        ...

    async def describe_intent(self, intent: str, merchant: str | None, provider: str | None, call: Call) -> Reply:
        """Whether a purchase may be paid, or paid elsewhere. `merchant` and `provider` narrow the search if given."""
        ...
