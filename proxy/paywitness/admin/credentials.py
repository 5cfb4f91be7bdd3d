"""Credentials on the admin port: the owners that are known for an operation's credential, and an operator's statements
about them. No reply holds a credential or a hash of one."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from paywitness.admin.backend import AdminBackend
from paywitness.admin.commands import JsonBody, problem_of, read_json_members
from paywitness.admin.middleware import json_reply
from paywitness.engine.credential_commands import CredentialView
from paywitness.engine.operator_commands import InvalidCommand, NoSuchOperation

_MEMBERS = ("actor", "reason", "evidence", "same_as")
_MEANINGS = {"=": "owner", "~": "credential", "@": "account"}


class CredentialsApi:
    def __init__(self, backend: AdminBackend) -> None:
        self._backend = backend

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/credentials/{id}", self.show),
            web.post("/v1/credentials/{id}/map", self.map),
            web.post("/v1/credentials/{id}/unmap", self.unmap),
        ]

    async def show(self, request: web.Request) -> web.Response:
        try:
            view = await self._backend.credential_commands.show(request.match_info["id"])
        except NoSuchOperation as error:
            raise problem_of(error) from None
        return json_reply(credential_json(view))

    async def map(self, request: web.Request) -> web.Response:
        body = JsonBody(await read_json_members(request), _MEMBERS)
        commands, operation_id = self._backend.credential_commands, request.match_info["id"]
        try:
            view = await commands.map(operation_id, body.text("same_as") or "", **_said(body))
        except (InvalidCommand, NoSuchOperation) as error:
            raise problem_of(error) from None
        return json_reply(credential_json(view))

    async def unmap(self, request: web.Request) -> web.Response:
        body = JsonBody(await read_json_members(request), _MEMBERS)
        try:
            view = await self._backend.credential_commands.unmap(request.match_info["id"], **_said(body))
        except (InvalidCommand, NoSuchOperation) as error:
            raise problem_of(error) from None
        return json_reply(credential_json(view))


def _said(body: JsonBody) -> dict[str, str]:
    return {name: body.text(name) or "" for name in ("actor", "reason", "evidence")}


def credential_json(view: CredentialView) -> dict[str, Any]:
    known = [{"of": _MEANINGS.get(mark[:1], "other"), "said_by": source} for mark, source in sorted(view.marks.items())]
    return {"operation": view.operation.id, "known": known}
