"""How our own commands call the admin port: one request, one JSON object back, or an error with the next step in it.

It uses no HTTP library and no proxy of the environment, and follows no redirect: the token goes only to the given
address.
"""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterable
from typing import Any
from urllib.parse import SplitResult, quote, urlencode, urlsplit

from paywitness.core.errors import PaywitnessError

_REPLY_BYTES_MAX = 16 * 1024 * 1024  # a page of 200 operations is a few hundred kilobytes
_TIMEOUT_S = 10.0
_COMMAND_TIMEOUT_S = 60.0  # up to five hundred operations, each recorded before the next


class AdminUnreachable(PaywitnessError):
    """No admin port replied at the address."""


class AdminRefused(PaywitnessError):
    """The sidecar replied with an error."""

    def __init__(self, status_code: int, detail: str) -> None:
        super().__init__(detail)
        self.status_code = status_code


class AdminClient:
    def __init__(self, address: str, token: str | None) -> None:
        self.address = (address if "://" in address else f"http://{address}").removesuffix("/")
        self._token = token

    def operations(self, filters: Iterable[tuple[str, str]]) -> dict[str, Any]:
        return self._get(f"/v1/operations?{urlencode(list(filters))}")

    def operation(self, operation_id: str) -> dict[str, Any]:
        return self._get(f"/v1/operations/{quote(operation_id, safe='')}")

    def payment(self, name: str, filters: Iterable[tuple[str, str]] = ()) -> dict[str, Any]:
        """A payment by its id, by the id of an operation of it, or by one of the provider's names for it."""
        query = urlencode(list(filters))
        return self._get(f"/v1/payments/{quote(name, safe='')}{'?' if query else ''}{query}")

    def intent(self, intent: str) -> dict[str, Any]:
        return self._get(f"/v1/intents/{quote(intent, safe='')}")

    def adopt(self, command: dict[str, Any]) -> dict[str, Any]:
        return self._request("POST", "/v1/payments", command)

    def state_balance(self, payment_id: str, command: dict[str, Any]) -> dict[str, Any]:
        return self._request("POST", f"/v1/payments/{quote(payment_id, safe='')}/balance", command)

    def declare_unpaid(self, payment_id: str, command: dict[str, Any]) -> dict[str, Any]:
        return self._request("POST", f"/v1/payments/{quote(payment_id, safe='')}/not-paid", command)

    def credential(self, operation_id: str) -> dict[str, Any]:
        return self._get(f"/v1/credentials/{quote(operation_id, safe='')}")

    def map_credential(self, operation_id: str, command: dict[str, Any]) -> dict[str, Any]:
        return self._request("POST", f"/v1/credentials/{quote(operation_id, safe='')}/map", command)

    def unmap_credential(self, operation_id: str, command: dict[str, Any]) -> dict[str, Any]:
        return self._request("POST", f"/v1/credentials/{quote(operation_id, safe='')}/unmap", command)

    def run_action(self, operation_id: str, action: str, command: dict[str, Any]) -> dict[str, Any]:
        return self._request("POST", f"/v1/operations/{quote(operation_id, safe='')}/{action}", command)

    def run_bulk_action(self, action: str, command: dict[str, Any]) -> dict[str, Any]:
        return self._request("POST", f"/v1/review/{action}", command)

    def approvals(self) -> dict[str, Any]:
        return self._get("/v1/approvals")

    def approve(self, approval_id: str, command: dict[str, Any]) -> dict[str, Any]:
        return self._request("POST", f"/v1/approvals/{quote(approval_id, safe='')}/approve", command)

    def journal(self) -> dict[str, Any]:
        return self._get("/v1/journal")

    def upgrade_journal(self, command: dict[str, Any]) -> dict[str, Any]:
        return self._request("POST", "/v1/journal/upgrade", command)

    def circuits(self) -> dict[str, Any]:
        return self._get("/v1/circuits")

    def budgets(self) -> dict[str, Any]:
        return self._get("/v1/budgets")

    def force(self, provider: str, group: str, command: dict[str, Any]) -> dict[str, Any]:
        """Force a circuit. A command whose state is None takes an earlier one back."""
        return self._request("POST", f"/v1/circuits/{quote(provider, safe='')}/{quote(group, safe='')}", command)

    def _get(self, target: str) -> dict[str, Any]:
        return self._request("GET", target, None)

    def _request(self, method: str, target: str, content: dict[str, Any] | None) -> dict[str, Any]:
        connection = self._connection(_TIMEOUT_S if content is None else _COMMAND_TIMEOUT_S)
        headers = {"Accept": "application/json"}
        if content is not None:
            headers["Content-Type"] = "application/json"
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        try:
            connection.request(method, target, json.dumps(content) if content is not None else None, headers)
            response = connection.getresponse()
            body = response.read(_REPLY_BYTES_MAX)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise AdminUnreachable(self._unreachable(error)) from None
        finally:
            connection.close()
        return self._read(response.status, body)

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        parts = self._parts()
        if parts.scheme == "https":
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(parts.hostname or "", parts.port, timeout=timeout_s, context=context)
        return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)

    def _parts(self) -> SplitResult:
        try:
            parts = urlsplit(self.address)
            usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and not parts.path
            usable = usable and (parts.port is None or parts.port > 0)
        except ValueError:
            usable = False
        if not usable:
            raise AdminUnreachable(f"{self.address!r} is not the address of a sidecar: give http://127.0.0.1:8701.")
        return parts

    def _read(self, status_code: int, body: bytes) -> dict[str, Any]:
        try:
            reply = json.loads(body)
        except ValueError:
            reply = None
        if not isinstance(reply, dict):
            raise AdminUnreachable(
                f"The server at {self.address} is not an admin port. Is it the port of --admin?",
            )
        if status_code != 200:
            raise AdminRefused(
                status_code, str(reply.get("detail") or f"The sidecar replied with status {status_code}.")
            )
        return reply

    def _unreachable(self, error: Exception) -> str:
        if isinstance(error, TimeoutError):
            return f"The sidecar at {self.address} did not reply in time. It may have run the command."
        why = (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
        return (
            f"No sidecar replies at {self.address} ({why}). Start one with `paywitness run`, or give its address with "
            "--admin URL or PAYWITNESS_ADMIN."
        )
