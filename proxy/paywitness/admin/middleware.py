"""The checks before every route, and the reply to every error: problem+json (RFC 9457)."""

from __future__ import annotations

import hmac
import json
import logging
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from paywitness.core.allowed_hosts import AllowedHosts
from paywitness.core.errors import JournalUnavailable, PaywitnessError
from paywitness.core.problems import PROBLEM_TYPE_PREFIX, Problem
from paywitness.repeated_lines import repeats
from paywitness.telemetry.logs import raised_at

_log = logging.getLogger("paywitness.admin")

# Health must reply even if everything else is out of order. Metrics hold only counts. Everything else needs the
# token.
OPEN_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})

_HOW_TO_SET_TOKEN = (
    "This proxy was started without an admin token, so this part of the admin port is closed. "
    "Set PAYWITNESS_ADMIN_TOKEN in its environment and start it again."
)
_JOURNAL_UNAVAILABLE_FOR_READ = "The journal did not answer. Try again; /readyz shows when it is back."
_JOURNAL_UNAVAILABLE_FOR_COMMAND = (
    "The journal did not answer, so it is unknown whether the command was recorded. Read the operation. If its "
    "timeline does not show the command, send it again. /readyz shows when the journal is back."
)
_HOW_TO_GIVE_TOKEN = "Send the admin token: 'Authorization: Bearer <token>'. It is the value of PAYWITNESS_ADMIN_TOKEN."


class AdminProblem(PaywitnessError):
    """An error that becomes a problem+json reply."""

    def __init__(
        self, status_code: int, kind: str, title: str, detail: str, members: dict[str, Any] | None = None
    ) -> None:
        super().__init__(title)
        self.status_code = status_code
        self.kind = kind
        self.title = title
        self.detail = detail
        self.members = members or {}

    def response(self) -> web.Response:
        members = {
            "type": PROBLEM_TYPE_PREFIX + self.kind,
            "title": self.title,
            "status": self.status_code,
            "detail": self.detail,
            **self.members,
        }
        return web.Response(
            status=self.status_code,
            body=json.dumps(members, ensure_ascii=False).encode(),
            content_type="application/problem+json",
        )


def json_reply(members: dict[str, Any], status_code: int = 200) -> web.Response:
    body = json.dumps(members, ensure_ascii=False, default=str).encode()
    return web.Response(status=status_code, body=body, content_type="application/json")


def not_found(detail: str) -> AdminProblem:
    return AdminProblem(404, "not-found", "There is no such thing here", detail)


def bad_query(detail: str) -> AdminProblem:
    return AdminProblem(400, "bad-query", "The query is not valid", detail)


def invalid_command(detail: str) -> AdminProblem:
    # The type used to be called `unfit-order`. `formerly` holds the old name for one release, for clients that
    # compare types.
    formerly = {"formerly": PROBLEM_TYPE_PREFIX + "unfit-order"}
    return AdminProblem(400, "invalid-command", "The command cannot be run", detail, formerly)


@web.middleware
async def problem_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn every exception of the inner handlers into a problem, and keep every reply out of caches."""
    try:
        response = await handler(request)
    except AdminProblem as problem:
        response = problem.response()
    except JournalUnavailable:
        detail = _JOURNAL_UNAVAILABLE_FOR_READ if request.method == "GET" else _JOURNAL_UNAVAILABLE_FOR_COMMAND
        response = AdminProblem(503, "journal-unavailable", "The journal did not answer", detail).response()
    except web.HTTPException as error:
        response = _routing_problem(request, error)
    except Exception as error:  # noqa: BLE001  # a mistake of ours answers 500, without its message: that may hold data
        place = raised_at(error)
        _log.error("%s at %s", type(error).__name__, place, extra=repeats(place))
        detail = f"The admin port failed ({type(error).__name__}). Its log shows the place."
        response = AdminProblem(500, "mistake", "The admin port failed", detail).response()
    response.headers["Server"] = "paywitness"  # the library would name itself and its version
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Content-Type-Options"] = "nosniff"
    return response


def _routing_problem(request: web.Request, error: web.HTTPException) -> web.Response:
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        detail = f"{request.path} allows {allowed}, not {request.method}."
        response = AdminProblem(405, "method-not-allowed", "Method not allowed", detail).response()
        response.headers["Allow"] = allowed
        return response
    if error.status == 404:
        return not_found(f"The admin port has no {request.path}.").response()
    detail = f"{request.method} {request.path} was refused."
    return AdminProblem(error.status, "refused", error.reason, detail).response()


def page_guard(allowed_hosts: AllowedHosts) -> Middleware:
    """Refuse a request from a web page of another origin, and one whose Host header is not a name of ours. This holds
    for the open paths too: metrics and health are not for other web pages."""

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        host = request.headers.get("Host", "")
        if not allowed_hosts.allows_host(host):
            detail = (
                f"The Host header names {host[:80]!r}, which is no name of the admin port. Use its address, or add the "
                "name to --allowed-hosts."
            )
            raise AdminProblem(403, Problem.HOST_NOT_ALLOWED, "The admin port does not serve this host name", detail)
        origins, fetch_sites = request.headers.getall("Origin", ()), request.headers.getall("Sec-Fetch-Site", ())
        if not allowed_hosts.allows_origin(host, origins, fetch_sites):
            detail = "The request comes from a web page of another origin."
            raise AdminProblem(403, Problem.CROSS_SITE, "A web page of another origin may not call this", detail)
        return await handler(request)

    return guard


def token_guard(token: str | None) -> Middleware:
    """Refuse a request without the token, except for the open paths."""
    expected = token.encode() if token else None

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path in OPEN_PATHS:
            return await handler(request)
        if expected is None:
            raise AdminProblem(403, "admin-token-not-set", "No admin token is set", _HOW_TO_SET_TOKEN)
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        equal = hmac.compare_digest(given.strip().encode("utf-8", "surrogateescape"), expected)
        if equal and scheme.lower() == "bearer":
            return await handler(request)
        wrong = AdminProblem(401, "admin-token-wrong", "The admin token is missing or wrong", _HOW_TO_GIVE_TOKEN)
        response = wrong.response()
        response.headers["WWW-Authenticate"] = 'Bearer realm="paywitness admin"'
        return response

    return guard
