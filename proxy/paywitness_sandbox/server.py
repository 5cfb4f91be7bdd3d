"""The sandbox as a whole: its listener, its connections, and the life of one arrival.

async with Sandbox(SandboxOptions(contract="not_stored")) as sandbox:
    ...                                   # talk to sandbox.url
    assert sandbox.ledger.effects(order="o-1") == 1
"""

from __future__ import annotations

import asyncio
import logging
import ssl as tls
from collections.abc import Mapping
from types import TracebackType

from paywitness_sandbox.bank.bank import Bank
from paywitness_sandbox.bank.ledger import Ledger
from paywitness_sandbox.connection import CallerGone, SandboxConnection
from paywitness_sandbox.contract import Contract, parse_contract
from paywitness_sandbox.control import PREFIX, control
from paywitness_sandbox.exchange import NoFault, SandboxExchange
from paywitness_sandbox.faults.registry import FAULTS, UnknownFault
from paywitness_sandbox.faults.selection import (
    FAULT_HEADER,
    ActiveSchedule,
    FaultChoice,
    Schedule,
    ScriptedArrivals,
    parse_outage,
    parse_schedule,
)
from paywitness_sandbox.listener import SandboxListener
from paywitness_sandbox.messages import ArrivalLog, Request, SandboxArrival, SandboxResponse, error_response, misuse
from paywitness_sandbox.options import SandboxOptions
from paywitness_sandbox.provider import SandboxProvider
from paywitness_sandbox.webhooks.events import UnknownMode, describe_modes
from paywitness_sandbox.webhooks.publisher import EventPublisher

__all__ = ["Sandbox", "SandboxOptions"]

CONNECTIONS_MAX = 10_000  # at once; one more is reset

logger = logging.getLogger("paywitness.sandbox")


class Sandbox:
    def __init__(self, options: SandboxOptions | None = None) -> None:
        self._options = options or SandboxOptions()
        self._provider = SandboxProvider(self._options, self._options.clock)
        self._scripted = ScriptedArrivals()
        self._active_schedule = self._activate(self._options.schedule)
        self._connections: set[SandboxConnection] = set()
        self._listener: SandboxListener | None = None

    # -- open and close -------------------------------------------------------------------------------------------

    async def start(self, host: str = "127.0.0.1", port: int = 0, ssl: tls.SSLContext | None = None) -> None:
        if self._listener is not None:
            raise RuntimeError("the sandbox is open already")
        self._active_schedule = self._activate(self._options.schedule)  # its times count from here
        listener = SandboxListener(self._new_connection, lambda: self._active_schedule, self._close_idle)
        await listener.open(host, port, ssl)
        self._listener = listener

    async def stop(self) -> None:
        """Close the listener and end everything under way, also commits still to come."""
        if self._listener is None:
            return
        await self._listener.close()
        self._listener = None
        tasks = [connection.task for connection in self._connections if connection.task is not None]
        for connection in list(self._connections):
            connection.abort()
        await asyncio.gather(*tasks, return_exceptions=True)  # their errors have been logged already
        await self._provider.publisher.close()

    async def __aenter__(self) -> Sandbox:
        if self._listener is None:
            await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def port(self) -> int:
        return self._open_listener.port

    @property
    def url(self) -> str:
        return self._open_listener.url

    @property
    def listening(self) -> bool:
        """False in an outage that refuses, and while the sandbox is not open."""
        return self._listener is not None and self._listener.listening

    @property
    def _open_listener(self) -> SandboxListener:
        if self._listener is None:
            raise RuntimeError("the sandbox is not open")
        return self._listener

    # -- reads and settings ---------------------------------------------------------------------------------------

    @property
    def options(self) -> SandboxOptions:
        return self._options

    @property
    def ledger(self) -> Ledger:
        return self._provider.ledger

    @property
    def arrivals(self) -> ArrivalLog:
        return self._provider.arrivals

    @property
    def bank(self) -> Bank:
        return self._provider.bank

    @property
    def contract(self) -> Contract:
        return self._provider.contract

    @property
    def webhooks(self) -> EventPublisher:
        return self._provider.publisher

    @property
    def under_way(self) -> int:
        """The exchanges that have not ended: hanging, dripping, or about to commit late."""
        return sum(connection.busy for connection in self._connections)

    @property
    def schedule(self) -> Schedule:
        return self._active_schedule.schedule

    def set_contract(self, name: str) -> None:
        self._provider.contract = parse_contract(name)

    def set_schedule(self, source: Mapping[str, object]) -> None:
        """Put a schedule in force at once, with fresh random numbers and times. An invalid one raises and changes
        nothing."""
        self._active_schedule = self._activate(source)
        self._schedule_changed()

    def add_outage(self, source: Mapping[str, object]) -> None:
        """`{"mode": "refuse", "duration_s": 5}` begins now, or after its start_s."""
        self._active_schedule.add_outage(parse_outage(source, self._options.fault_defaults))
        self._schedule_changed()

    def reset(self) -> None:
        """Go back to the start. Exchanges under way are ended, so that no late commit reaches the fresh ledger."""
        for connection in list(self._connections):
            if connection.busy:
                connection.abort()
        self._provider.clear()
        self._scripted.clear()
        self.set_schedule(self._options.schedule)

    def _activate(self, source: Mapping[str, object]) -> ActiveSchedule:
        defaults = self._options.fault_defaults
        schedule = parse_schedule(source, seed=self._options.seed, defaults=defaults)
        return ActiveSchedule(schedule, self._options.clock, defaults)

    def _schedule_changed(self) -> None:
        if self._listener is not None:
            self._listener.schedule_changed()

    # -- the life of an arrival -----------------------------------------------------------------------------------

    def _new_connection(self) -> SandboxConnection:
        serve = self._serve if len(self._connections) < CONNECTIONS_MAX else self._reject
        connection = SandboxConnection(serve, self._connections.discard)
        self._connections.add(connection)
        return connection

    async def _reject(self, connection: SandboxConnection) -> None:
        connection.reset()

    def _close_idle(self) -> None:
        """The listener was closed: end idle connections now, and busy ones after their response."""
        for connection in list(self._connections):
            connection.last_request = True
            if not connection.busy:
                connection.close()

    async def _serve(self, connection: SandboxConnection) -> None:
        while (request := await connection.next_request()) is not None:
            try:
                keep_open = await self._serve_request(connection, request)
            except CallerGone:
                return
            except Exception:
                logger.exception("the sandbox itself failed at %s %s", request.method, request.path)
                response = error_response(
                    500, "sandbox_error", "The sandbox itself failed; see its log.", code="sandbox_bug"
                )
                connection.write(response.head(("Connection", "close")) + response.body)
                return
            if not keep_open or connection.last_request:
                return

    async def _serve_request(self, connection: SandboxConnection, request: Request) -> bool:
        """Returns True if the connection may serve another request."""
        if request.segments[:1] == (PREFIX,):
            await connection.read(request)
            return await self._serve_control(connection, request)
        connection.busy = True
        try:
            return await self._serve_with_fault(connection, request)
        finally:
            connection.busy = False

    async def _serve_control(self, connection: SandboxConnection, request: Request) -> bool:
        response = control(self, request)
        await self.webhooks.publish(request)
        closing = () if request.keep_alive else (("Connection", "close"),)
        return connection.write(response.head(*closing) + response.body) and request.keep_alive

    async def _serve_with_fault(self, connection: SandboxConnection, request: Request) -> bool:
        arrival = self._provider.arrivals.add(self._options.clock(), request.method, request.target, request.key)
        by_chance = self._active_schedule.draw(request.writes)
        choice = await self._choose(connection, request, by_chance)
        exchange = self._exchange(connection, request, arrival, choice)
        if isinstance(choice, SandboxResponse):
            await connection.read(request)
            exchange.respond(choice)
            return exchange.responded and exchange.keeps_alive
        arrival.fault = None if isinstance(choice.fault, NoFault) else choice.fault.name
        try:
            await choice.fault.apply(exchange)
        finally:
            exchange.release_key()
        return exchange.responded and exchange.keeps_alive

    async def _choose(
        self, connection: SandboxConnection, request: Request, by_chance: FaultChoice
    ) -> FaultChoice | SandboxResponse:
        """The fault for the request. The header wins over the schedule, with its latency. An invalid header gets an
        error response."""
        script = request.headers.get(FAULT_HEADER)
        try:
            self._provider.contract_of(request)
            self.webhooks.mode_of(request)
            if script is None:
                return by_chance
            if request.identity_in_head is None:
                await connection.read(request)
            return FaultChoice(self._scripted.fault_for(script, request.identity, self._options.fault_defaults))
        except UnknownFault as error:
            return misuse(str(error), "unknown_fault", known_faults=sorted(FAULTS))
        except UnknownMode as error:
            return misuse(str(error), error.code, known_modes=describe_modes())
        except ValueError as error:
            return misuse(str(error), "unknown_contract", known_contracts=list(Contract))

    def _exchange(
        self,
        connection: SandboxConnection,
        request: Request,
        arrival: SandboxArrival,
        choice: FaultChoice | SandboxResponse,
    ) -> SandboxExchange:
        delay_s = choice.delay_s if isinstance(choice, FaultChoice) else 0.0
        return SandboxExchange(request, connection, self._provider, arrival, delay_s=delay_s)
