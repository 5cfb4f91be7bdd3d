"""The routes of the admin port. Thin: each asks the journal, the process or the review, and gives the answer its
shape."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any

from aiohttp import web
from prometheus_client.exposition import choose_encoder

from proxy.admin import shapes
from proxy.admin.door import bad_query, json_answer, not_found
from proxy.admin.limits import LimitsApi
from proxy.admin.lists import page_of, twin_of
from proxy.admin.orders import act_of, body_of, limit_of, order_of, refused
from proxy.admin.query import wanted_of, whole_number
from proxy.admin.view import View
from proxy.clock import Clock, SystemClock
from proxy.core.operation import Operation
from proxy.engine.review import NoSuchOperation, NotOffered, Overtaken, UnfitOrder
from proxy.journal.base import OutcomeRow
from proxy.telemetry.exposition import pieces

_OPERATION_ID = re.compile(r"op_[0-9A-Za-z]{1,64}\Z")
_OUTCOMES_DEFAULT, _OUTCOMES_MAX = 100, 500
_SEQ_MAX = 2**63 - 1
_WAIT_MAX_S = 30
_LOOK_EVERY_S = 0.5  # while somebody waits for the feed
_VERSION_MAX = 2**31
_HEALTH_S = 0.5  # half of what Kubernetes' probes wait where nothing is said
_AT_ONCE_S = 0.001  # of writing a scrape: then calls have their turn


class Api:
    def __init__(self, view: View, clock: Clock | None = None) -> None:
        self._view = view
        self._clock = clock or SystemClock()
        self._limits = LimitsApi(view)

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/healthz", self.healthz),
            web.get("/readyz", self.readyz),
            web.get("/metrics", self.metrics),
            web.get("/v1/operations", self.operations),
            web.get("/v1/operations/{id}", self.operation),
            web.post("/v1/operations/{id}/{action}", self.act),
            web.get("/v1/review", self.review),
            web.post("/v1/review/{action}", self.act_on_many),
            web.get("/v1/incidents", self.incidents),
            web.get("/v1/intents/{id:.+}", self.intent),
            web.get("/v1/outcomes", self.outcomes),
            web.get("/v1/policies", self.policies),
            *self._limits.routes(),
        ]

    async def healthz(self, request: web.Request) -> web.Response:
        """The loop runs: nothing else is asked. A sidecar whose journal is down must not be restarted for it."""
        return json_answer({"healthy": True})

    async def readyz(self, request: web.Request) -> web.Response:
        readiness, book = self._view.readiness(), self._view.book()
        healthy = await self._journal_healthy()
        told = shapes.ready(readiness, book, self._view.metrics.doubt_counts, journal_healthy=healthy)
        return json_answer(told, 200 if told["ready"] else 503)

    async def _journal_healthy(self) -> bool:
        """Within a moment: a journal that hangs must not make us look dead to whoever asks whether we are ready."""
        try:
            async with asyncio.timeout(_HEALTH_S):
                return await self._view.journal.healthy()
        except TimeoutError:
            return False

    async def metrics(self, request: web.Request) -> web.Response:
        self._view.metrics.look()
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        written, rested_mono = [], self._clock.mono()
        for piece in pieces(self._view.metrics.registry, encode):
            written.append(piece)
            if self._clock.mono() - rested_mono > _AT_ONCE_S:
                await asyncio.sleep(0)
                rested_mono = self._clock.mono()
        return web.Response(body=b"".join(written), headers={"Content-Type": content_type})

    # --- operations

    async def operations(self, request: web.Request) -> web.Response:
        return await self._page(_query_of(request))

    async def review(self, request: web.Request) -> web.Response:
        """What waits for a person."""
        return await self._page({**_query_of(request), "review": ["true"]})

    async def incidents(self, request: web.Request) -> web.Response:
        """Where evidence contradicts what was final, with what to do about it."""
        return await self._page({**_query_of(request), "incidents": ["true"]})

    async def _page(self, query: Mapping[str, list[str]]) -> web.Response:
        found, following = await page_of(self._view.journal, wanted_of(query))
        return json_answer(shapes.operations_page(found, following, self._view.book()))

    async def operation(self, request: web.Request) -> web.Response:
        operation_id = _operation_id(request)
        operation = await self._view.journal.read(operation_id)
        if operation is None:
            raise not_found(f"The journal holds no operation {operation_id[:80]}.")
        return json_answer(await self._whole(operation))

    async def _whole(self, operation: Operation) -> dict[str, Any]:
        journal = self._view.journal
        return shapes.operation_whole(
            operation,
            await journal.history(operation.id),
            book=self._view.book(),
            policy=await self._view.review.policy_of(operation),
            twin=await twin_of(journal, operation),
        )

    # --- what a person does

    async def act(self, request: web.Request) -> web.Response:
        act = act_of(request.match_info["action"])
        operation_id = _operation_id(request)
        body = await body_of(request, many=False)
        order = order_of(act, body, many=False)
        version = body.number("version", 0, _VERSION_MAX, None)
        try:
            operation = await self._view.review.act(operation_id, order, version)
        except (UnfitOrder, NotOffered, Overtaken, NoSuchOperation) as error:
            raise refused(error) from None
        return json_answer(await self._whole(operation))

    async def act_on_many(self, request: web.Request) -> web.Response:
        act = act_of(request.match_info["action"])
        body = await body_of(request, many=True)
        order, wanted = order_of(act, body, many=True), body.filters()
        dry_run = body.switch("dry_run", default=True)
        try:
            found = await self._view.review.act_on_many(
                wanted.listing, order, dry_run=dry_run, limit=limit_of(body), only=body.texts("operations")
            )
        except UnfitOrder as error:
            raise refused(error) from None
        return json_answer(shapes.bulk(found, dry_run=dry_run))

    # --- the rest of the company

    async def intent(self, request: web.Request) -> web.Response:
        query = _query_of(request)
        if unknown := set(query) - {"merchant", "provider"}:
            raise bad_query(f"There is no filter {min(unknown)[:64]!r}. Filters: merchant, provider.")
        merchant, provider = request.query.get("merchant"), request.query.get("provider")
        reply = await self._view.intents.describe(request.match_info["id"], merchant, provider)
        content_type = "application/problem+json" if reply.problem is not None else "application/json"
        return web.Response(status=reply.status_code, body=reply.body, content_type=content_type)

    async def outcomes(self, request: web.Request) -> web.Response:
        """The feed: what changes told, in their order. `wait_s` waits for the next where there is none yet."""
        query = _query_of(request)
        if unknown := set(query) - {"after", "limit", "wait_s"}:
            raise bad_query(f"There is no {min(unknown)[:64]!r} here. The feed has: after, limit, wait_s.")
        after = whole_number("after", query.get("after", ["0"])[0], 0, _SEQ_MAX)
        limit = whole_number("limit", query.get("limit", [str(_OUTCOMES_DEFAULT)])[0], 1, _OUTCOMES_MAX)
        wait_s = whole_number("wait_s", query.get("wait_s", ["0"])[0], 0, _WAIT_MAX_S)
        return json_answer(shapes.outcomes(await self._outcomes(after, limit, wait_s), after))

    async def _outcomes(self, after: int, limit: int, wait_s: int) -> tuple[OutcomeRow, ...]:
        until_mono = self._clock.mono() + wait_s
        while True:
            rows = await self._view.journal.outcomes(after, limit=limit)
            left_s = until_mono - self._clock.mono()
            if rows or left_s <= 0:
                return rows
            await self._clock.sleep(min(_LOOK_EVERY_S, left_s))

    async def policies(self, request: web.Request) -> web.Response:
        return json_answer(shapes.policies(self._view.book(), self._view.readiness()))


def _query_of(request: web.Request) -> dict[str, list[str]]:
    return {name: request.query.getall(name) for name in request.query}


def _operation_id(request: web.Request) -> str:
    operation_id = request.match_info["id"]
    if not _OPERATION_ID.match(operation_id):
        raise not_found(f"The journal holds no operation {operation_id[:80]}.")
    return operation_id
