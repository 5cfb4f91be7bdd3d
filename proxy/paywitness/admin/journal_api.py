"""The journal's level, the sidecars that hold it, and the command that raises the level."""

from __future__ import annotations

import logging
from typing import Any

from aiohttp import web

from paywitness.admin.backend import AdminBackend
from paywitness.admin.commands import JsonBody, read_json_members
from paywitness.admin.limits_api import actor_and_reason
from paywitness.admin.middleware import AdminProblem, invalid_command, json_reply, not_found
from paywitness.engine.durability.levels import Levels

_log = logging.getLogger("paywitness.admin")
_MEMBERS = ("actor", "reason", "older_stopped")
_OLDER_LIVES = (
    "Sidecars of an older release were running within the last ten leases. The journal would refuse them from then on, "
    "and one that states no level would go on unnoticed. Stop them. Then confirm it with `older_stopped` "
    "(--older-stopped)."
)


class JournalApi:
    def __init__(self, backend: AdminBackend) -> None:
        self._backend = backend

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/v1/journal", self.status), web.post("/v1/journal/upgrade", self.upgrade)]

    async def status(self, request: web.Request) -> web.Response:
        levels = self._levels()
        await levels.announce()
        return json_reply(status_json(levels))

    async def upgrade(self, request: web.Request) -> web.Response:
        levels = self._levels()
        body = JsonBody(await read_json_members(request), _MEMBERS)
        actor, reason = actor_and_reason(body)
        older_stopped = body.member("older_stopped") or False
        if not isinstance(older_stopped, bool):
            raise invalid_command("older_stopped is true or false.")
        await levels.announce()
        if levels.older_lives and not older_stopped:
            raise AdminProblem(409, "older-sidecars", "Older sidecars may be running", _OLDER_LIVES)
        raised = await levels.raise_level()
        _log.warning("%s raised the journal to level %d: %s", actor, raised.level, reason)
        return json_reply(status_json(levels))

    def _levels(self) -> Levels:
        levels = self._backend.levels
        if levels is None:
            raise not_found("This sidecar does not announce itself, and knows of no level.")
        return levels


def status_json(levels: Levels) -> dict[str, Any]:
    found, fleet = levels.journal_level, levels.fleet
    sidecars = fleet.sidecars if fleet is not None else ()
    return {
        "level": found.level if found is not None else None,
        "newest_level": levels.own_level,
        "raised_at": found.raised_at if found is not None and found.raised_at else None,
        "older_seen_at": fleet.older_at if fleet is not None else None,
        "older_lives": levels.older_lives,
        "raises_in_s": levels.raises_in_s,
        "sidecars": [
            {"name": one.name, "release": one.release, "level": one.level, "seen_at": one.seen_at} for one in sidecars
        ],
    }
