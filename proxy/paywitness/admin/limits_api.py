"""Limits on the admin port: the state of the circuits, the admission to each provider, the rest of the retry budgets.
An operator may change one thing: force a circuit, for a limited time, with a reason."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from paywitness.admin.backend import AdminBackend
from paywitness.admin.commands import JsonBody, read_json_members
from paywitness.admin.middleware import AdminProblem, invalid_command, json_reply, not_found
from paywitness.core.admission import AdmissionStats
from paywitness.core.budget import BudgetRules, BudgetScope, ScopeRule
from paywitness.core.circuit import FORCIBLE, CallGroup, CircuitState, CircuitStatus
from paywitness.core.errors import SettingsError, StoreUnavailable
from paywitness.core.policy import Provider
from paywitness.core.redact import redact
from paywitness.engine.operator_commands import ACTOR_LENGTH_MAX, REASON_LENGTH_MAX, REASON_LENGTH_MIN
from paywitness.limits.circuits import FORCED_MAX_S, CircuitCommand
from paywitness.option_defaults import read_duration
from paywitness.telemetry.events import CircuitForced

_FORCED_DEFAULT_S = 3600.0
_FORCED_MIN_S = 1.0
_NAMED_MAX = 50  # providers in a message
_ACTOR_AND_REASON = ("actor", "reason")
_FORCE_MEMBERS = ("state", *_ACTOR_AND_REASON, "for")
_FORCIBLE = ", ".join(sorted(FORCIBLE))
_NOT_CONFIRMED = (
    "The limits' Redis did not answer, so it is unknown whether the command took effect. Check the circuit "
    "(GET /v1/circuits, `paywitness circuits`). It is safe to send the same command again."
)


class LimitsApi:
    def __init__(self, backend: AdminBackend) -> None:
        self._backend = backend

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/circuits", self.circuits),
            web.post("/v1/circuits/{provider}/{group}", self.force),
            web.delete("/v1/circuits/{provider}/{group}", self.release),
            web.get("/v1/budgets", self.budgets),
        ]

    async def circuits(self, request: web.Request) -> web.Response:
        """Every circuit of the book, also those of providers that have not been called yet."""
        known, providers = self._circuit_statuses(), self._providers()
        rows = [
            _circuit_json(known.get((name, group)) or _default_status(name, group))
            for name in providers
            for group in CallGroup
        ]
        admission = [_admission_json(stats) for stats in self._backend.admission.stats() if stats.provider in providers]
        return json_reply({"circuits": rows, "admission": admission})

    async def force(self, request: web.Request) -> web.Response:
        provider, group = self._circuit_target(request)
        return await self._apply(
            provider, group, read_circuit_command(JsonBody(await read_json_members(request), _FORCE_MEMBERS))
        )

    async def release(self, request: web.Request) -> web.Response:
        provider, group = self._circuit_target(request)
        return await self._apply(
            provider,
            group,
            CircuitCommand(None, *actor_and_reason(JsonBody(await read_json_members(request), _ACTOR_AND_REASON))),
        )

    async def _apply(self, provider: str, group: CallGroup, command: CircuitCommand) -> web.Response:
        confirmed = False
        try:
            await self._backend.circuits.force(provider, group, command)
            confirmed = True
        except StoreUnavailable:
            title = "The command was not confirmed"
            raise AdminProblem(503, "limits-unavailable", title, _NOT_CONFIRMED) from None
        finally:  # also if it was not confirmed, because it may be in force
            for_s = command.for_s if command.state is not None else 0.0
            event = CircuitForced(provider, group, command.state, command.actor, command.reason, for_s, confirmed)
            self._backend.telemetry.emit(event)
        return json_reply(
            _circuit_json(self._circuit_statuses().get((provider, group)) or _default_status(provider, group))
        )

    async def budgets(self, request: web.Request) -> web.Response:
        """The retries that each budget still allows, and its rules."""
        return json_reply(
            {"budgets": [self._budget(one, group) for one in self._providers().values() for group in CallGroup]}
        )

    def _budget(self, provider: Provider, group: CallGroup) -> dict[str, Any]:
        budgets = self._backend.budgets
        # A provider's rules are the same for all of its operations.
        rules = provider.policies[0].budget if provider.policies else BudgetRules()
        remaining = budgets.remaining(provider.name, group)
        return {
            "provider": provider.name,
            "group": group,
            "fleet": budgets.fleet,
            "window_s": rules.window_s,
            "per_intent": rules.per_intent,
            "scopes": [_scope_json(scope, rule, remaining.get(scope)) for scope, rule in _rules_of(rules).items()],
        }

    def _providers(self) -> dict[str, Provider]:
        book = self._backend.book()
        return dict(sorted(book.providers.items())) if book is not None else {}

    def _circuit_statuses(self) -> dict[tuple[str, CallGroup], CircuitStatus]:
        return {(one.provider, one.group): one for one in self._backend.circuits.statuses()}

    def _circuit_target(self, request: web.Request) -> tuple[str, CallGroup]:
        provider, group = request.match_info["provider"], request.match_info["group"]
        providers = self._providers()
        if provider not in providers:
            names = ", ".join(list(providers)[:_NAMED_MAX]) or "none"
            raise not_found(f"No policy names a provider {provider[:64]!r}. Providers: {names}.")
        try:
            return provider, CallGroup(group)
        except ValueError:
            raise not_found(f"There is no group {group[:64]!r}. Groups: {', '.join(CallGroup)}.") from None


def read_circuit_command(body: JsonBody) -> CircuitCommand:
    """Read a circuit command. Raises AdminProblem (400) if it is not valid."""
    if not body.has("state"):
        raise invalid_command(f"Give a state: {_FORCIBLE}, or null to take an earlier command back.")
    given = body.text("state", None)
    actor, reason = actor_and_reason(body)
    if given is None:
        if body.member("for") is not None:
            raise invalid_command("for needs a state: taking a command back has effect at once.")
        return CircuitCommand(None, actor, reason)
    if given not in FORCIBLE:
        raise invalid_command(f"{given[:64]!r} cannot be forced, only {_FORCIBLE}; null takes an earlier command back.")
    return CircuitCommand(CircuitState(given), actor, reason, _forced_s(body))


def actor_and_reason(body: JsonBody) -> tuple[str, str]:
    """Both are stored beside the circuit and logged, so they must be printable and of a bounded length."""
    actor, reason = ((body.text(name) or "").strip() for name in _ACTOR_AND_REASON)
    if not (actor + reason).replace("\n", "").replace("\t", "").isprintable():
        raise invalid_command("actor or reason holds characters that cannot be printed.")
    if not 1 <= len(actor) <= ACTOR_LENGTH_MAX:
        raise invalid_command(f"Say who does it: actor has 1 to {ACTOR_LENGTH_MAX} characters.")
    if not REASON_LENGTH_MIN <= len(reason) <= REASON_LENGTH_MAX:
        raise invalid_command(f"Say why: reason has {REASON_LENGTH_MIN} to {REASON_LENGTH_MAX} characters.")
    return redact(actor), redact(reason)


def _forced_s(body: JsonBody) -> float:
    given = body.member("for")
    if given is None:
        return _FORCED_DEFAULT_S
    if isinstance(given, str):
        try:
            return read_duration(given[:64], "for", least_s=_FORCED_MIN_S, most_s=FORCED_MAX_S)
        except SettingsError as error:
            raise invalid_command(f"{error}.") from None
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not _FORCED_MIN_S <= given <= FORCED_MAX_S:
        raise invalid_command(
            f"for is {_FORCED_MIN_S:.0f} to {FORCED_MAX_S:.0f} seconds, or a duration such as 15m, 2h or 7d."
        )
    return float(given)


# --- JSON


def _default_status(provider: str, group: CallGroup) -> CircuitStatus:
    """The circuit of a provider that has not been called or forced yet."""
    return CircuitStatus(provider, group, CircuitState.CLOSED, False, 0.0, 0.0, False, 1, None)


def _circuit_json(status: CircuitStatus) -> dict[str, Any]:
    forced = status.forced
    return {
        "provider": status.provider,
        "group": status.group,
        "state": status.state,
        "fleet": status.fleet,
        "for_s": round(status.for_s, 3),
        "retry_after_s": round(status.retry_after_s, 3),
        "throttled": status.throttled,
        "holds": [
            {"limited_by": hold.limited_by, "parties": hold.parties, "longest_s": round(hold.longest_s, 3)}
            for hold in status.holds
        ],
        "sidecars": status.sidecars,
        "forced": {"actor": redact(forced.actor), "reason": redact(forced.reason)} if forced is not None else None,
    }


def _admission_json(stats: AdmissionStats) -> dict[str, Any]:
    return {
        "provider": stats.provider,
        "limit": round(stats.limit, 3),
        "in_flight": stats.in_flight,
        "waiting": stats.waiting,
        "waiting_by_priority": {str(priority): count for priority, count in stats.waiting_by_priority.items()},
    }


def _rules_of(rules: BudgetRules) -> dict[BudgetScope, ScopeRule]:
    return {
        BudgetScope.PROVIDER: rules.provider,
        BudgetScope.OPERATION: rules.operation,
        BudgetScope.ACCOUNT: rules.account,
        BudgetScope.FAILURE_CLASS: rules.failure_class,
    }


def _scope_json(scope: BudgetScope, rule: ScopeRule, remaining: float | None) -> dict[str, Any]:
    """`remaining` is null if nothing has been counted yet: the whole floor is still there."""
    return {
        "scope": scope,
        "remaining": round(remaining, 3) if remaining is not None else None,
        "floor": rule.floor,
        "ratio": rule.ratio,
        "ceiling": rule.ceiling,
    }
