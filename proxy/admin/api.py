"""The routes of the admin port. Thin: each asks the journal or the process, and gives the answer its shape."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from typing import Any

from aiohttp import web
from prometheus_client.exposition import choose_encoder

from proxy.admin import shapes
from proxy.admin.door import not_found
from proxy.admin.query import listing_of
from proxy.admin.view import View

_OPERATION_ID = re.compile(r"op_[0-9A-Za-z]{1,64}\Z")


class Api:
    def __init__(self, view: View) -> None:
        self._view = view

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/healthz", self.healthz),
            web.get("/readyz", self.readyz),
            web.get("/metrics", self.metrics),
            web.get("/v1/operations", self.operations),
            web.get("/v1/operations/{id}", self.operation),
            web.get("/v1/policies", self.policies),
        ]

    async def healthz(self, request: web.Request) -> web.Response:
        """The loop runs: nothing else is asked. A sidecar whose journal is down must not be restarted for it."""
        return _json({"healthy": True})

    async def readyz(self, request: web.Request) -> web.Response:
        readiness, book = self._view.readiness(), self._view.book()
        healthy = await self._view.journal.healthy()
        told = shapes.ready(readiness, book, self._view.metrics.doubt_counts, journal_healthy=healthy)
        return _json(told, 200 if told["ready"] else 503)

    async def metrics(self, request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        # Writing a thousand samples takes tens of milliseconds: calls must not wait for it.
        body = await asyncio.to_thread(encode, self._view.metrics.registry)
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def operations(self, request: web.Request) -> web.Response:
        query = {name: request.query.getall(name) for name in request.query}
        listing = listing_of(query)
        found = await self._view.journal.listing(replace(listing, limit=listing.limit + 1))
        return _json(shapes.operations_page(found, listing.limit))

    async def operation(self, request: web.Request) -> web.Response:
        operation_id = request.match_info["id"]
        journal = self._view.journal
        operation = await journal.read(operation_id) if _OPERATION_ID.match(operation_id) else None
        if operation is None:
            raise not_found(f"The journal holds no operation {operation_id[:80]}.")
        return _json(shapes.operation_whole(operation, await journal.history(operation_id)))

    async def policies(self, request: web.Request) -> web.Response:
        return _json(shapes.policies(self._view.book(), self._view.readiness()))


def _json(members: dict[str, Any], status_code: int = 200) -> web.Response:
    body = json.dumps(members, ensure_ascii=False, default=str).encode()
    return web.Response(status=status_code, body=body, content_type="application/json")
