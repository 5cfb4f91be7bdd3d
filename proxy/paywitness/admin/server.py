"""The admin port: its routes and its listener. It listens on loopback by default, apart from the payment port.

Routes are thin: each calls the journal, the process or the operator actions, and `shapes` gives the reply its JSON.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping
from typing import Any

from aiohttp import web
from prometheus_client.exposition import choose_encoder

from paywitness.admin import shapes
from paywitness.admin.backend import AdminBackend
from paywitness.admin.commands import (
    problem_of,
    read_action,
    read_approval_body,
    read_body,
    read_bulk_limit,
    read_command,
)
from paywitness.admin.credentials import CredentialsApi
from paywitness.admin.journal_api import JournalApi
from paywitness.admin.limits_api import LimitsApi
from paywitness.admin.listings import other_payment_of, read_listing_query, read_page, whole_number
from paywitness.admin.middleware import bad_query, json_reply, not_found, page_guard, problem_middleware, token_guard
from paywitness.admin.payments import PaymentsApi
from paywitness.clock import Clock, SystemClock
from paywitness.core.allowed_hosts import AllowedHosts
from paywitness.core.operation import Operation
from paywitness.engine.operator_commands import ActionNotAllowed, InvalidCommand, NoSuchOperation, VersionConflict
from paywitness.engine.payout_approvals import ApprovalRefused, NoSuchApproval
from paywitness.journal.base import AnnouncementRow
from paywitness.telemetry.prometheus import exposition_pieces

_OPERATION_ID = re.compile(r"op_[0-9A-Za-z]{1,64}\Z")
_APPROVAL_ID = re.compile(r"ap_[0-9a-f]{1,64}\Z")
_OUTCOMES_DEFAULT, _OUTCOMES_MAX = 100, 500
_SEQ_MAX = 2**63 - 1
_WAIT_MAX_S = 30
_FEED_POLL_EVERY_S = 0.5  # while a request waits for the next row of the feed
_VERSION_MAX = 2**31
_HEALTH_S = 0.5  # half the timeout of a Kubernetes probe whose manifest sets none
_SCRAPE_SLICE_S = 0.001  # of CPU for writing a scrape; then calls get the event loop again


class AdminApi:
    def __init__(self, backend: AdminBackend, clock: Clock | None = None) -> None:
        self._backend = backend
        self._clock = clock or SystemClock()
        self._limits = LimitsApi(backend)
        self._payments = PaymentsApi(backend)

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/healthz", self.healthz),
            web.get("/readyz", self.readyz),
            web.get("/metrics", self.metrics),
            web.get("/v1/operations", self.operations),
            web.get("/v1/operations/{id}", self.operation),
            web.post("/v1/operations/{id}/{action}", self.run_action),
            web.get("/v1/review", self.review),
            web.post("/v1/review/{action}", self.run_bulk_action),
            web.get("/v1/incidents", self.incidents),
            web.get("/v1/approvals", self.approvals),
            web.post("/v1/approvals/{id}/approve", self.approve),
            web.get("/v1/outcomes", self.outcomes),
            web.get("/v1/policies", self.policies),
            *self._payments.routes(),
            *CredentialsApi(self._backend).routes(),
            *self._limits.routes(),
            *JournalApi(self._backend).routes(),
        ]

    async def healthz(self, request: web.Request) -> web.Response:
        """Reply that the event loop runs, and check nothing else. A restart would not help a sidecar whose journal is
        down."""
        return json_reply({"healthy": True})

    async def readyz(self, request: web.Request) -> web.Response:
        readiness, book = self._backend.readiness(), self._backend.book()
        healthy = await self._journal_healthy()
        content = shapes.readiness_json(
            readiness,
            book,
            self._backend.metrics.doubt_counts,
            journal_healthy=healthy,
            rolled_back_s=self._backend.journal.rolled_back_s(),
        )
        return json_reply(content, 200 if content["ready"] else 503)

    async def _journal_healthy(self) -> bool:
        """Ask the journal for at most _HEALTH_S, so that a hanging journal cannot make the readiness probe time out."""
        try:
            async with asyncio.timeout(_HEALTH_S):
                return await self._backend.journal.healthy()
        except TimeoutError:
            return False

    async def metrics(self, request: web.Request) -> web.Response:
        self._backend.metrics.refresh_gauges()
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        written, rested_mono = [], self._clock.mono()
        for piece in exposition_pieces(self._backend.metrics.registry, encode):
            written.append(piece)
            if self._clock.mono() - rested_mono > _SCRAPE_SLICE_S:
                await asyncio.sleep(0)
                rested_mono = self._clock.mono()
        return web.Response(body=b"".join(written), headers={"Content-Type": content_type})

    # --- operations

    async def operations(self, request: web.Request) -> web.Response:
        return await self._page(_query_of(request))

    async def review(self, request: web.Request) -> web.Response:
        """Operations that wait for a person."""
        return await self._page({**_query_of(request), "review": ["true"]})

    async def incidents(self, request: web.Request) -> web.Response:
        """Operations with contradicting evidence, each with a proposal."""
        return await self._page({**_query_of(request), "incidents": ["true"]})

    async def _page(self, query: Mapping[str, list[str]]) -> web.Response:
        listing_query = await self._payments.resolved(read_listing_query(query))
        found, following = await read_page(self._backend.journal, listing_query)
        others = {
            operation.id: other
            for operation in found
            if operation.incident is not None
            and (other := await other_payment_of(self._backend.journal, operation)) is not None
        }
        return json_reply(shapes.operations_page(found, following, self._backend.book(), others))

    async def operation(self, request: web.Request) -> web.Response:
        operation_id = _operation_id(request)
        operation = await self._backend.journal.read(operation_id)
        if operation is None:
            raise not_found(f"The journal holds no operation {operation_id[:80]}.")
        return json_reply(await self._operation_json(operation))

    async def _operation_json(self, operation: Operation) -> dict[str, Any]:
        journal = self._backend.journal
        return shapes.operation_detail(
            operation,
            await journal.history(operation.id),
            book=self._backend.book(),
            policy=await self._backend.review.policy_of(operation),
            other_payment=await other_payment_of(journal, operation),
            balance=await self._payments.balance_of(operation),
        )

    # --- operator commands

    async def run_action(self, request: web.Request) -> web.Response:
        action = read_action(request.match_info["action"])
        operation_id = _operation_id(request)
        body = await read_body(request, many=False)
        command = read_command(action, body, many=False)
        version = body.number("version", 0, _VERSION_MAX, None)
        try:
            operation = await self._backend.review.execute(operation_id, command, version)
        except (InvalidCommand, ActionNotAllowed, VersionConflict, NoSuchOperation) as error:
            raise problem_of(error) from None
        return json_reply(await self._operation_json(operation))

    async def run_bulk_action(self, request: web.Request) -> web.Response:
        action = read_action(request.match_info["action"])
        body = await read_body(request, many=True)
        command = read_command(action, body, many=True)
        listing_query = await self._payments.resolved(body.filters())
        dry_run = body.switch("dry_run", default=True)
        try:
            found = await self._backend.review.execute_many(
                listing_query.listing,
                command,
                dry_run=dry_run,
                limit=read_bulk_limit(body),
                only_ids=body.texts("operations"),
            )
        except InvalidCommand as error:
            raise problem_of(error) from None
        return json_reply(shapes.bulk(found, dry_run=dry_run))

    async def approvals(self, request: web.Request) -> web.Response:
        """Payouts that wait for a person's approval, and approved ones whose call has not come yet."""
        approvals = self._backend.approvals
        return json_reply(shapes.approvals([(each, approvals.status(each)) for each in await approvals.listed()]))

    async def approve(self, request: web.Request) -> web.Response:
        approval_id = request.match_info["id"]
        if not _APPROVAL_ID.match(approval_id):
            raise not_found(f"The journal holds no request for approval {approval_id[:80]}.")
        body = await read_approval_body(request)
        approvals = self._backend.approvals
        try:
            approval = await approvals.approve(approval_id, body.text("actor") or "", body.text("reason") or "")
        except (InvalidCommand, NoSuchApproval, ApprovalRefused) as error:
            raise problem_of(error) from None
        return json_reply(shapes.approval_json(approval, approvals.status(approval)))

    # --- the feed for other systems

    async def outcomes(self, request: web.Request) -> web.Response:
        """The feed: the announcements, in order. With `wait_s` the request waits for the next one if there is none
        yet."""
        query = _query_of(request)
        if unknown := set(query) - {"after", "limit", "wait_s"}:
            raise bad_query(f"There is no parameter {min(unknown)[:64]!r}. The feed has: after, limit, wait_s.")
        after = whole_number("after", query.get("after", ["0"])[0], 0, _SEQ_MAX)
        limit = whole_number("limit", query.get("limit", [str(_OUTCOMES_DEFAULT)])[0], 1, _OUTCOMES_MAX)
        wait_s = whole_number("wait_s", query.get("wait_s", ["0"])[0], 0, _WAIT_MAX_S)
        return json_reply(shapes.outcomes(await self._outcomes(after, limit, wait_s), after))

    async def _outcomes(self, after: int, limit: int, wait_s: int) -> tuple[AnnouncementRow, ...]:
        until_mono = self._clock.mono() + wait_s
        while True:
            rows = await self._backend.journal.announcements(after, limit=limit)
            left_s = until_mono - self._clock.mono()
            if rows or left_s <= 0:
                return rows
            await self._clock.sleep(min(_FEED_POLL_EVERY_S, left_s))

    async def policies(self, request: web.Request) -> web.Response:
        return json_reply(shapes.policies(self._backend.book(), self._backend.readiness()))


def _query_of(request: web.Request) -> dict[str, list[str]]:
    return {name: request.query.getall(name) for name in request.query}


def _operation_id(request: web.Request) -> str:
    operation_id = request.match_info["id"]
    if not _OPERATION_ID.match(operation_id):
        raise not_found(f"The journal holds no operation {operation_id[:80]}.")
    return operation_id


# --- Listener

_BODY_BYTES_MAX = 65_536  # no route takes a larger body
_CLOSE_GRACE_S = 2.0


# The library would log a request that is not HTTP as an error. Anybody who reaches the port could fill the log with
# such requests. `problem_middleware` logs our own mistakes.
_FRAMING_MISTAKES = logging.getLogger("paywitness.admin.framing")
_FRAMING_MISTAKES.addFilter(lambda _: False)


class AdminServer:
    """Serves the routes over a backend. `token` guards all but health and metrics. Without a token the guarded part
    is closed."""

    def __init__(self, backend: AdminBackend, token: str | None, allowed_hosts: AllowedHosts = AllowedHosts()) -> None:
        self._backend = backend
        self._allowed_hosts = allowed_hosts
        self._token = token
        self._runner: web.AppRunner | None = None

    def application(self) -> web.Application:
        # The first one is the outermost, so a problem that a guard raises becomes a reply, too.
        middlewares = (problem_middleware, page_guard(self._allowed_hosts), token_guard(self._token))
        application = web.Application(middlewares=middlewares, client_max_size=_BODY_BYTES_MAX)
        application.add_routes(AdminApi(self._backend).routes())
        return application

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port. If 0 was given, the system has chosen it. Raises OSError."""
        # Bodies stay compressed if they came so; `commands` refuses them.
        runner = web.AppRunner(
            self.application(),
            access_log=None,
            shutdown_timeout=_CLOSE_GRACE_S,
            auto_decompress=False,
            logger=_FRAMING_MISTAKES,
        )
        await runner.setup()
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError:
            await runner.cleanup()
            raise
        self._runner = runner
        return int(runner.addresses[0][1])

    async def close(self) -> None:
        """Stop listening. Requests under way get a moment to finish."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
