"""The sandbox as a whole: its door, its connections, and the life of one arrival.

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

from proxy.sandbox.answer import Answer, error_answer, misuse
from proxy.sandbox.arrivals import Arrival, ArrivalLog
from proxy.sandbox.bank import Bank
from proxy.sandbox.catalogue import FAULTS, UnknownFault
from proxy.sandbox.choosing import FAULT_HEADER, Choice, ScheduleInForce, ScriptedArrivals
from proxy.sandbox.contract import Contract, contract_named
from proxy.sandbox.control import PREFIX, control
from proxy.sandbox.door import Door
from proxy.sandbox.exchange import Exchange
from proxy.sandbox.fault import NoFault
from proxy.sandbox.ledger import Ledger
from proxy.sandbox.options import SandboxOptions
from proxy.sandbox.provider import Provider
from proxy.sandbox.request import Request
from proxy.sandbox.schedule import Schedule, parse_outage, parse_schedule
from proxy.sandbox.webhooks.announcer import Announcer
from proxy.sandbox.webhooks.mode import UnknownMode, describe_modes
from proxy.sandbox.wire import CallerGone, Connection

__all__ = ["Sandbox", "SandboxOptions"]

CONNECTIONS_MAX = 10_000  # at once; one more is reset

logger = logging.getLogger("paywitness.sandbox")


class Sandbox:
    def __init__(self, options: SandboxOptions | None = None) -> None:
        self._options = options or SandboxOptions()
        self._provider = Provider(self._options, self._options.clock)
        self._scripted = ScriptedArrivals()
        self._in_force = self._put_in_force(self._options.schedule)
        self._connections: set[Connection] = set()
        self._door: Door | None = None

    # -- open and close -------------------------------------------------------------------------------------------

    async def start(self, host: str = "127.0.0.1", port: int = 0, ssl: tls.SSLContext | None = None) -> None:
        if self._door is not None:
            raise RuntimeError("the sandbox is open already")
        self._in_force = self._put_in_force(self._options.schedule)  # its times count from here
        door = Door(self._connect, lambda: self._in_force, self._send_away)
        await door.open(host, port, ssl)
        self._door = door

    async def stop(self) -> None:
        """Close the door and break off whatever is going on, commits to come included."""
        if self._door is None:
            return
        await self._door.close()
        self._door = None
        tasks = [connection.task for connection in self._connections if connection.task is not None]
        for connection in list(self._connections):
            connection.break_off()
        await asyncio.gather(*tasks, return_exceptions=True)  # what went wrong in them was logged when it did
        await self._provider.announcer.close()

    async def __aenter__(self) -> Sandbox:
        if self._door is None:
            await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def port(self) -> int:
        return self._opened.port

    @property
    def url(self) -> str:
        return self._opened.url

    @property
    def listening(self) -> bool:
        """False in an outage that refuses, and when the sandbox is not open."""
        return self._door is not None and self._door.listening

    @property
    def _opened(self) -> Door:
        if self._door is None:
            raise RuntimeError("the sandbox is not open")
        return self._door

    # -- look and choose ------------------------------------------------------------------------------------------

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
    def webhooks(self) -> Announcer:
        return self._provider.announcer

    @property
    def under_way(self) -> int:
        """Exchanges that have not ended: hanging, dripping, or about to commit late."""
        return sum(connection.busy for connection in self._connections)

    @property
    def schedule(self) -> Schedule:
        return self._in_force.schedule

    def set_contract(self, name: str) -> None:
        self._provider.contract = contract_named(name)

    def set_schedule(self, source: Mapping[str, object]) -> None:
        """Takes force at once, its dice and its times begun anew. A bad one raises and changes nothing."""
        self._in_force = self._put_in_force(source)
        self._schedule_changed()

    def add_outage(self, source: Mapping[str, object]) -> None:
        """`{"mode": "refuse", "duration_s": 5}`, from now on; start_s puts it off."""
        self._in_force.add_outage(parse_outage(source, self._options.fault_defaults))
        self._schedule_changed()

    def reset(self) -> None:
        """As at the start. Exchanges under way are broken off, so that no late commit reaches the fresh ledger."""
        for connection in list(self._connections):
            if connection.busy:
                connection.break_off()
        self._provider.clear()
        self._scripted.clear()
        self.set_schedule(self._options.schedule)

    def _put_in_force(self, source: Mapping[str, object]) -> ScheduleInForce:
        defaults = self._options.fault_defaults
        schedule = parse_schedule(source, seed=self._options.seed, defaults=defaults)
        return ScheduleInForce(schedule, self._options.clock, defaults)

    def _schedule_changed(self) -> None:
        if self._door is not None:
            self._door.schedule_changed()

    # -- the life of an arrival -----------------------------------------------------------------------------------

    def _connect(self) -> Connection:
        serve = self._serve if len(self._connections) < CONNECTIONS_MAX else self._turn_away
        connection = Connection(serve, self._connections.discard)
        self._connections.add(connection)
        return connection

    async def _turn_away(self, connection: Connection) -> None:
        connection.reset()

    def _send_away(self) -> None:
        """The door was shut: idle connections end now, busy ones after their answer."""
        for connection in list(self._connections):
            connection.last_request = True
            if not connection.busy:
                connection.close()

    async def _serve(self, connection: Connection) -> None:
        while (request := await connection.next_request()) is not None:
            try:
                goes_on = await self._carry(connection, request)
            except CallerGone:
                return
            except Exception:
                logger.exception("the sandbox itself failed at %s %s", request.method, request.path)
                answer = error_answer(
                    500, "sandbox_error", "The sandbox itself failed; see its log.", code="sandbox_bug"
                )
                connection.write(answer.head(("Connection", "close")) + answer.body)
                return
            if not goes_on or connection.last_request:
                return

    async def _carry(self, connection: Connection, request: Request) -> bool:
        """True when the connection may serve another request."""
        if request.segments[:1] == (PREFIX,):
            await connection.read(request)
            return await self._answer_control(connection, request)
        connection.busy = True
        try:
            return await self._play(connection, request)
        finally:
            connection.busy = False

    async def _answer_control(self, connection: Connection, request: Request) -> bool:
        answer = control(self, request)
        await self.webhooks.announce(request)
        closing = () if request.keep_alive else (("Connection", "close"),)
        return connection.write(answer.head(*closing) + answer.body) and request.keep_alive

    async def _play(self, connection: Connection, request: Request) -> bool:
        arrival = self._provider.arrivals.note(self._options.clock(), request.method, request.target, request.key)
        by_chance = self._in_force.draw(request.writes)
        choice = await self._choose(connection, request, by_chance)
        exchange = self._exchange(connection, request, arrival, choice)
        if isinstance(choice, Answer):
            await connection.read(request)
            exchange.answer(choice)
            return exchange.answered and exchange.keeps_alive
        arrival.fault = None if isinstance(choice.fault, NoFault) else choice.fault.name
        try:
            await choice.fault.play(exchange)
        finally:
            exchange.abandon()
        return exchange.answered and exchange.keeps_alive

    async def _choose(self, connection: Connection, request: Request, by_chance: Choice) -> Choice | Answer:
        """The header wins over the schedule, its latency included; a header that makes no sense is answered."""
        script = request.headers.get(FAULT_HEADER)
        try:
            self._provider.contract_of(request)
            self.webhooks.mode_of(request)
            if script is None:
                return by_chance
            if request.identity_in_head is None:
                await connection.read(request)
            return Choice(self._scripted.fault_for(script, request.identity, self._options.fault_defaults))
        except UnknownFault as error:
            return misuse(str(error), "unknown_fault", known_faults=sorted(FAULTS))
        except UnknownMode as error:
            return misuse(str(error), error.code, known_modes=describe_modes())
        except ValueError as error:
            return misuse(str(error), "unknown_contract", known_contracts=list(Contract))

    def _exchange(
        self, connection: Connection, request: Request, arrival: Arrival, choice: Choice | Answer
    ) -> Exchange:
        delay_s = choice.delay_s if isinstance(choice, Choice) else 0.0
        return Exchange(request, connection, self._provider, arrival, delay_s=delay_s)
