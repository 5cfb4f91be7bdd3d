"""Limits as people see them: how circuits stand, how full it is at each provider, what is left for retries. And the
one thing a person may do about them: force a circuit, for a while, with a reason."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from proxy.admin.door import AdminProblem, json_answer, not_found, unfit_order
from proxy.admin.orders import Body, members_of
from proxy.admin.view import View
from proxy.core.budget import BudgetRules, Scope, ScopeRule
from proxy.core.circuit import FORCIBLE, CircuitState, Group
from proxy.core.errors import SettingsError, StoreUnavailable
from proxy.core.policy import Provider
from proxy.core.redact import redact
from proxy.engine.review import ACTOR_LENGTH_MAX, REASON_LENGTH_MAX, REASON_LENGTH_MIN
from proxy.limits.admission import Crowd
from proxy.limits.circuits import FORCED_MAX_S, Order, Standing
from proxy.settings import read_duration
from proxy.telemetry.records import CircuitForced

_FOR_S = 3600.0
_FOR_LEAST_S = 1.0
_NAMED_MAX = 50  # providers in a message
_WORD = ("actor", "reason")
_ORDER = ("state", *_WORD, "for")
_FORCIBLE = ", ".join(sorted(FORCIBLE))
_NOT_CONFIRMED = (
    "The limits' Redis did not answer, so whether the order is in force is not known. See how the circuit stands "
    "(GET /v1/circuits, `paywitness circuits`); the same order again does no harm."
)


class LimitsApi:
    def __init__(self, view: View) -> None:
        self._view = view

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/circuits", self.circuits),
            web.post("/v1/circuits/{provider}/{group}", self.force),
            web.delete("/v1/circuits/{provider}/{group}", self.release),
            web.get("/v1/budgets", self.budgets),
        ]

    async def circuits(self, request: web.Request) -> web.Response:
        """Every circuit of the book, also those of providers that nobody has called yet."""
        known, providers = self._standings(), self._providers()
        rows = [_circuit(known.get((name, group)) or _untouched(name, group)) for name in providers for group in Group]
        crowds = [_crowd(crowd) for crowd in self._view.admission.crowds() if crowd.provider in providers]
        return json_answer({"circuits": rows, "admission": crowds})

    async def force(self, request: web.Request) -> web.Response:
        provider, group = self._place(request)
        return await self._order(provider, group, order_of(Body(await members_of(request), _ORDER)))

    async def release(self, request: web.Request) -> web.Response:
        provider, group = self._place(request)
        return await self._order(provider, group, Order(None, *_word_of(Body(await members_of(request), _WORD))))

    async def _order(self, provider: str, group: Group, order: Order) -> web.Response:
        confirmed = False
        try:
            await self._view.circuits.force(provider, group, order)
            confirmed = True
        except StoreUnavailable:
            title = "The order was not confirmed"
            raise AdminProblem(503, "limits-unavailable", title, _NOT_CONFIRMED) from None
        finally:  # told also where it was not confirmed: it may be in force
            for_s = order.for_s if order.state is not None else 0.0
            told = CircuitForced(provider, group, order.state, order.actor, order.reason, for_s, confirmed)
            self._view.telemetry.tell(told)
        return json_answer(_circuit(self._standings().get((provider, group)) or _untouched(provider, group)))

    async def budgets(self, request: web.Request) -> web.Response:
        """What is left for retries, and the rules by which it is."""
        return json_answer(
            {"budgets": [self._budget(one, group) for one in self._providers().values() for group in Group]}
        )

    def _budget(self, provider: Provider, group: Group) -> dict[str, Any]:
        budgets = self._view.budgets
        # A provider's rules are the same for all of its operations.
        rules = provider.policies[0].budget if provider.policies else BudgetRules()
        remaining = budgets.remaining(provider.name, group)
        return {
            "provider": provider.name,
            "group": group,
            "fleet": budgets.fleet,
            "window_s": rules.window_s,
            "per_intent": rules.per_intent,
            "scopes": [_scope(scope, rule, remaining.get(scope)) for scope, rule in _rules_of(rules).items()],
        }

    def _providers(self) -> dict[str, Provider]:
        book = self._view.book()
        return dict(sorted(book.providers.items())) if book is not None else {}

    def _standings(self) -> dict[tuple[str, Group], Standing]:
        return {(one.provider, one.group): one for one in self._view.circuits.standings()}

    def _place(self, request: web.Request) -> tuple[str, Group]:
        provider, group = request.match_info["provider"], request.match_info["group"]
        providers = self._providers()
        if provider not in providers:
            names = ", ".join(list(providers)[:_NAMED_MAX]) or "none"
            raise not_found(f"No policy names a provider {provider[:64]!r}. Providers: {names}.")
        try:
            return provider, Group(group)
        except ValueError:
            raise not_found(f"There is no group {group[:64]!r}. Groups: {', '.join(Group)}.") from None


def order_of(body: Body) -> Order:
    """What an operator wants of a circuit. Raises AdminProblem (400) where it cannot be followed."""
    if not body.names("state"):
        raise unfit_order(f"Say which state: {_FORCIBLE}; null takes an earlier order back.")
    given = body.text("state", None)
    actor, reason = _word_of(body)
    if given is None:
        if body.member("for") is not None:
            raise unfit_order("for belongs to a state that is forced; what is taken back is over at once.")
        return Order(None, actor, reason)
    if given not in FORCIBLE:
        raise unfit_order(f"{given[:64]!r} cannot be forced, only {_FORCIBLE}; null takes an earlier order back.")
    return Order(CircuitState(given), actor, reason, _for_s(body))


def _word_of(body: Body) -> tuple[str, str]:
    """Who, and why: kept beside the circuit and in the log, so fit to be kept."""
    actor, reason = ((body.text(name) or "").strip() for name in _WORD)
    if not (actor + reason).replace("\n", "").replace("\t", "").isprintable():
        raise unfit_order("actor or reason holds characters that cannot be printed.")
    if not 1 <= len(actor) <= ACTOR_LENGTH_MAX:
        raise unfit_order(f"Say who does it: actor has 1 to {ACTOR_LENGTH_MAX} characters.")
    if not REASON_LENGTH_MIN <= len(reason) <= REASON_LENGTH_MAX:
        raise unfit_order(f"Say why: reason has {REASON_LENGTH_MIN} to {REASON_LENGTH_MAX} characters.")
    return redact(actor), redact(reason)


def _for_s(body: Body) -> float:
    given = body.member("for")
    if given is None:
        return _FOR_S
    if isinstance(given, str):
        try:
            return read_duration(given[:64], "for", least_s=_FOR_LEAST_S, most_s=FORCED_MAX_S)
        except SettingsError as error:
            raise unfit_order(f"{error}.") from None
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not _FOR_LEAST_S <= given <= FORCED_MAX_S:
        raise unfit_order(
            f"for is {_FOR_LEAST_S:.0f} to {FORCED_MAX_S:.0f} seconds, or a duration such as 15m, 2h or 7d."
        )
    return float(given)


# --- its JSON


def _untouched(provider: str, group: Group) -> Standing:
    """The circuit of a provider that nobody has called or forced yet."""
    return Standing(provider, group, CircuitState.CLOSED, False, 0.0, 0.0, False, 1, None)


def _circuit(standing: Standing) -> dict[str, Any]:
    forced = standing.forced
    return {
        "provider": standing.provider,
        "group": standing.group,
        "state": standing.state,
        "fleet": standing.fleet,
        "for_s": round(standing.for_s, 3),
        "retry_after_s": round(standing.retry_after_s, 3),
        "throttled": standing.throttled,
        "sidecars": standing.sidecars,
        "forced": {"actor": redact(forced.actor), "reason": redact(forced.reason)} if forced is not None else None,
    }


def _crowd(crowd: Crowd) -> dict[str, Any]:
    return {
        "provider": crowd.provider,
        "limit": round(crowd.limit, 3),
        "in_flight": crowd.in_flight,
        "waiting": crowd.waiting,
    }


def _rules_of(rules: BudgetRules) -> dict[Scope, ScopeRule]:
    return {
        Scope.PROVIDER: rules.provider,
        Scope.OPERATION: rules.operation,
        Scope.ACCOUNT: rules.account,
        Scope.FAILURE_CLASS: rules.failure_class,
    }


def _scope(scope: Scope, rule: ScopeRule, remaining: float | None) -> dict[str, Any]:
    """`remaining` null: nothing was counted yet, so all of the floor is there."""
    return {
        "scope": scope,
        "remaining": round(remaining, 3) if remaining is not None else None,
        "floor": rule.floor,
        "ratio": rule.ratio,
        "ceiling": rule.ceiling,
    }
