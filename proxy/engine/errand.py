"""An Errand: one call on its way through the engine. What the engine knows of it beside the operation itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from proxy.clock import Clock
from proxy.core.body import Tree
from proxy.core.call import Call, Priority
from proxy.core.circuit import Group
from proxy.core.classify import Asked
from proxy.core.frozen import frozen
from proxy.core.identity import Identity
from proxy.core.limited import Limited
from proxy.core.operation import Operation
from proxy.core.policy import Policy
from proxy.core.reply import NO_SHAPE, ErrorShape, Reply
from proxy.engine.keeping import KeptRequest
from proxy.limits.admission import Admitted
from proxy.limits.budgets import Grant
from proxy.limits.circuits import Probe

RESOLVER = "resolver"  # as the timeline tells whose errand it is


@frozen
class Turn:
    """The right to one attempt at a provider."""

    policy: Policy
    group: Group
    admitted: Admitted
    probe: Probe | None


@dataclass(slots=True, eq=False)
class First:
    """One that is ahead under its key."""

    operation: Operation | None  # that it would start
    claimed: bool = False  # its claim was answered, or is not made after all
    _heard: asyncio.Future[None] | None = None  # of those behind it; most have nobody behind them

    def tell(self) -> None:
        self.claimed = True
        if self._heard is not None and not self._heard.done():
            self._heard.set_result(None)

    async def wait(self, within_s: float) -> bool:
        """Whether its claim was answered in time."""
        if not self.claimed and within_s > 0:
            if self._heard is None:
                self._heard = asyncio.get_running_loop().create_future()
            await asyncio.wait({self._heard}, timeout=within_s)
        return self.claimed


@dataclass(slots=True)
class Errand:
    call: Call
    policy: Policy
    tree: Tree
    identity: Identity
    asked: Asked
    shape: ErrorShape
    token: str
    deadline_mono: float
    still_there: Callable[[], bool]
    request: KeptRequest
    answer: asyncio.Future[Reply]  # what the caller is told; at the deadline, whether or not the errand is over
    over: asyncio.Future[Reply]  # how the errand ended; what waits for it is told this
    tries: int = 1
    last_delay_s: float = 0.0
    byte_started: bool = False  # of this attempt: from here on it belongs to the operation, not to the caller
    has_sent: bool = False  # whether any attempt of this errand started a byte
    journal_at: float = 0.0  # the journal's time when it answered the claim, and our own then: ages are counted so,
    journal_boot: float = 0.0  #   because the journal's time never goes back and this clock counts suspension
    never_stored: bool = False  # the request holds what must not be kept
    bytes_at_hand: bool = True  # the first attempt's very bytes can be sent again
    asked_in_vain: bool = False  # the provider has just been asked, and knows nothing of it
    source: str = "caller"  # whose errand it is, as the timeline tells it
    priority: Priority = Priority.HIGH
    refusal: str = ""  # why the gate did not permit anything new
    turn: Turn | None = None  # for the attempt that comes next, or is under way
    first: First | None = None  # where it is the one ahead under its key
    grant: Grant | None = None  # what the retry that comes next was allowed by
    limited: Limited | None = None  # what held it back, as its answer tells
    held_by_circuit: bool = False  # what ended the last attempt before it began
    operation: Operation | None = None  # first the one it would start, then as it last stood

    def tell(self, reply: Reply) -> None:
        """Answer the caller, unless it has been answered."""
        if not self.answer.done():
            self.answer.set_result(reply)

    @property
    def may_have_sent(self) -> bool:
        """Whether a byte of the operation may have left, by this errand or by one before it."""
        return self.byte_started or (self.operation is not None and bool(self.operation.doubt))

    @property
    def in_background(self) -> bool:
        """Whether nobody asked for it now: the resolver's."""
        return self.source == RESOLVER

    @property
    def nobody_hears(self) -> bool:
        """Whether the caller has gone, or was told already that nothing is known."""
        return self.answer.done() or not self.still_there()


def background_errand(
    operation: Operation, policy: Policy, request: KeptRequest | None, token: str, clock: Clock
) -> Errand:
    """An errand that nobody waits for: the resolver's. Its deadline has passed, so nothing new starts by it."""
    loop = asyncio.get_running_loop()
    kept = request if request is not None else KeptRequest("POST", "/", (), b"")
    path, _, query = kept.target.partition("?")
    return Errand(
        call=Call(operation.provider, kept.method, path, query, kept.segments, kept.headers, kept.body),
        policy=policy,
        tree=None,
        identity=Identity(
            key=operation.key,
            account=operation.account,
            client_key=operation.client_key,
            key_source=operation.key_source,
            names_purchase=operation.names_purchase,
            provider_key=operation.provider_key,
            key_stem=None,
            fingerprint=operation.fingerprint,
            ignore=operation.ignore,
            credential=operation.credential,
            guard=operation.guard,
        ),
        asked=Asked(operation.money),
        shape=NO_SHAPE,
        token=token,
        deadline_mono=clock.mono(),
        still_there=lambda: False,
        request=kept,
        answer=loop.create_future(),
        over=loop.create_future(),
        tries=0,
        journal_at=operation.updated_at,
        journal_boot=clock.boot(),
        bytes_at_hand=request is not None and not operation.request_hash,
        source=RESOLVER,
        operation=operation,
    )
