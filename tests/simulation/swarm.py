"""The swarm: each seed picks its own mix. Which faults there are and how often, which contract, how many sidecars, how
much load, how patient everybody is. Many seeds with few faults each find more than one seed with all of them.

A seed is mild, rough or wild. In a mild world most payments go well, as they do, and a fault meets whatever it meets
alone; in a wild one every third exchange goes wrong. How many go wrong is a matter of the world, not of its size: a
short one is so much rougher.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

# What may happen to one exchange. The network draws one of them, or none.
UNSENT = ("dns_failure", "refused", "connect_timeout", "tls_failure", "closed_at_once")
LOST = ("reset_while_writing", "black_hole", "answer_lost", "reset_before_answer", "truncated", "garbage", "oversized")
ODD = (
    *("delayed", "late_answer", "late_refusal", "slow", "foreign", "empty_200", "gateway_502", "gateway_504"),
    "duplicated",
)
PROVIDER = (
    *("error_500_before", "error_500_after", "overloaded", "rate_limited", "late_commit", "unauthorized"),
    "declined_once",
)
FAULTS = (*UNSENT, *LOST, *ODD, *PROVIDER)
# Answers of something in front of the provider, in its place (`enemies.py`).
GATEWAYS = ("page_400", "page_403", "page_404", "page_200", "redirect")

# A second arrival of the same bytes is executed again by a provider that keeps no key: no sidecar could prevent that.
NEEDS_KEYS = frozenset({"duplicated"})
OUTAGES = ("refused", "black_hole", "answer_lost", "error_500_before", "overloaded", "slow", "rate_limited")
LONG_LAGS_S = (10.0, 20.0)  # of searches: what is made just before all has settled shows up well after it
_WORKED_ON_LONG = frozenset({"late_commit", "gateway_504"})
BROWNOUTS = (0.3, 0.7, 1.0)  # 1.0: a whole outage
WEBHOOKS = ("normal", "early", "late", "twice", "out_of_order", "never")
ROUGH = {0.06: 70, 0.2: 25, 1.0: 5}  # how much of the full rates, and of how many seeds in a hundred
SHORT_WINDOW_S = 600  # of keys: somebody may come back when it is over
USUAL_PAYMENTS = 1_000
# Waits between looks. The dense one asks often while nothing can be concluded yet, the sparse one as policies do.
DENSE = "500ms, 1s, 2s, 4s, 8s, 15s, 30s, 60s, 2m, 10m"
SPARSE = "1s, 10s, 25s, 35s, 45s, 60s, 90s, 2m, 10m"


def stream(seed: int, name: str) -> Random:
    """Chance of one part of the world. A draw more in one part moves no other's."""
    return Random(f"{seed} {name}")


@dataclass(frozen=True)
class Outage:
    begins_s: float
    lasts_s: float
    fault: str
    share: float  # of what is sent meanwhile: less than 1 is a brownout


@dataclass(frozen=True)
class Mix:
    """What one seed chose."""

    seed: int
    payments: int
    focus: str = ""  # the one enemy of a world that has no others (`focus.py`)
    contract: str = "replayed"
    asks: bool = True
    webhooks: bool = True
    fallback: bool = False
    leaves_if_absent: bool = False  # also for what inquiries show to be absent; then callers wait long enough for that
    leaves_if_rejected: bool = False  # and for a credential that the first route refuses
    window_s: int = 86_400
    lag_s: float = 0.0
    stale_looks: float = 0.0  # share of the first looks at a thing that are served by a replica which lacks it
    attempts: int = 3
    deadline_s: int = 6
    resend_for_s: int = 20
    harvest_s: float = 5.0
    schedule: str = DENSE
    sidecars: int = 1
    rate_per_s: float = 20.0
    weather_s: float = 0.0  # so long may something befall them; 0: while payments come
    new_connections: float = 0.1  # share of what is sent over a connection that is opened for it
    connects_s: float = 0.02  # at most
    faults: dict[str, float] = field(default_factory=dict)
    outages: tuple[Outage, ...] = ()
    webhook_modes: tuple[str, ...] = ("normal",)
    tells: float = 1.0  # share of what is told by webhooks of that which went well; of the rest all
    retires: bool = False  # in the end what is over becomes tombstones, and some come back for it
    # callers
    hangs_up: float = 0.0
    hurries: float = 0.0
    goes_elsewhere: float = 0.0  # once it is told that nothing was sent
    fresh_key: float = 0.0
    other_payload: float = 0.0
    twice_at_once: float = 0.0
    again_after_answer: float = 0.0
    returns_late: float = 0.0  # when the provider has forgotten the key
    declines: float = 0.0
    open_ends: float = 0.0  # processing and 3DS
    authorizations: float = 0.0
    follow_ups: float = 0.0  # captures, voids and refunds
    payouts: float = 0.0
    patience: int = 3
    # sidecars and their store
    crashes: int = 0
    crashes_at_steps: int = 0  # at a named point of a call's life, between two awaits that take no time
    pauses: int = 0
    pauses_connecting: int = 0  # likewise, just before it sends
    suspends: bool = False
    clock_jumps: int = 0
    operators: int = 0  # so often somebody takes a look at what is open, and does something about it
    reloads: int = 0
    journal_latency: float = 0.0
    journal_lost_replies: float = 0.0
    journal_refusals: float = 0.0
    journal_late_writes: float = 0.0
    journal_stalls: int = 0
    cut_offs: int = 0
    failovers: int = 0
    spool: bool = True
    events: bool = True
    # The money between operations: orders that are captured, refunded and paid in several calls (`orders.py`).
    money_between: bool = False
    orders: float = 0.0  # share of the wishes that are such an order instead
    stories: tuple[str, ...] = ()  # what they are about; none: any
    partial: str = "sequence"  # how often an authorization can be captured: `single`, or in a `sequence`
    lenient: bool = False  # the provider adds nothing up: more can be captured and refunded than there is
    limits: str = "warn"
    limits_edited: str = "warn"  # once the policy is edited
    # Enemies (`enemies.py`)
    foreign_objects: float = 0.0  # share of the inquiries that are shown somebody else's object
    equal_amounts: bool = False  # everybody pays the same
    merchants: str = (
        ""  # a second one behind the same sidecars, told by a `selector`, our `header`, as `owners` or as `many`
    )
    rotates: bool = False  # merchants change their credentials
    restricted: str = ""  # they have a second credential, which only `sends` or only `reads`
    store_steps: int = 0  # the store's own clock is set
    reboots: bool = False  # a sidecar that is killed comes back on a machine that was started anew
    inquiry_pages: float = 0.0  # share of the inquiries that a gateway answers, also for a while after all is calm
    copies_stamps: float = 0.0  # share of the calls whose metadata were copied from the answer to another payment
    copied_events: float = 0.0  # share of the events that also come for a copy of the object, with the same metadata
    looks: float = 0.0  # share of the calls beside which somebody asks whether the order may be paid
    long_names: float = 0.0  # share of the orders whose names are longer than what a journal keeps of them
    drains: int = 0  # sidecars that are shut down in an orderly way
    late_steps_s: float = 0.0  # so long after the payments came clocks are still set
    clock_stops: bool = False  # the clock of a machine that is down stands still: the store's too, which is on it
    pods_live_s: float = 0.0  # sidecars are replaced all the time, and none lives longer; 0: they live on
    moves: bool = False  # an edit of the policy moves the upstream to an address that knows nothing of the first
    bounded_lists: bool = False  # searches show what was made after a time, by the provider's clock
    provider_ahead_s: float = 0.0  # of that clock, before everybody else's
    shows_dates: bool = False  # responses bear a `Date`
    odd_statuses: float = 0.0  # share of the payments whose answer names them, with a status that no row knows
    forgets_s: float = 1.0  # so much a store that fails over forgets; without end: all that it has
    shows_declines: bool = False  # a payment that was declined is read as declined, whichever confirm asks about it

    @property
    def enforces(self) -> bool:
        """Whether no call may ever exceed what is left of its payment. A store that forgets makes numbers unknown."""
        edited = self.limits_edited if self.reloads else self.limits
        return self.money_between and self.limits == edited == "enforce" and not self.failovers

    @property
    def dedupes(self) -> bool:
        return self.contract != "none"


def with_money_between(mix: Mix) -> Mix:
    """The same world, with orders whose operations share their money."""
    dice = stream(mix.seed, "mix, the money between")
    limits = dice.choice(("enforce", "enforce", "warn", "off"))
    return replace(
        mix,
        money_between=True,
        orders=0.5,
        partial=dice.choice(("sequence", "sequence", "single")),
        lenient=dice.random() < 0.4,
        limits=limits,
        limits_edited=dice.choice((limits, limits, "enforce", "warn", "off")),
        operators=max(mix.operators, dice.choice((0, 5, 20))),
        reloads=max(mix.reloads, dice.choice((0, 1, 3))),
    )


def mix_of(seed: int, payments: int) -> Mix:
    dice = stream(seed, "mix")
    contract = dice.choice(("replayed", "replayed", "reexecuted", "not_stored", "none"))
    asks = dice.random() < 0.8
    # What can be asked about is known long before a key is forgotten. Where nobody can be asked, keys are forgotten
    # soon, and it is for a webhook to tell, or for nobody.
    window_s = dice.choice((86_400, 86_400, 30, 60) if asks else (30, 60))
    webhooks = dice.random() < (0.5 if asks else 0.8)
    modes = tuple(sorted(dice.sample(WEBHOOKS, dice.choice((1, 2, 3, 6)))))
    load_s = dice.choice((5.0, 10.0, 20.0))
    rough = dice.choices(tuple(ROUGH), tuple(ROUGH.values()))[0]
    rough = min(1.0, rough * max(1.0, USUAL_PAYMENTS / payments))

    def sometimes(often: float, highest: float) -> float:
        return dice.uniform(0.01, highest) * max(rough, 0.1) if dice.random() < often else 0.0

    faults: dict[str, float] = {}
    for name in FAULTS:
        rate = dice.choice((0.004, 0.02, 0.06)) * rough if dice.random() < 0.4 else 0.0
        if rate and (name not in NEEDS_KEYS or contract in {"replayed", "reexecuted"}):
            faults[name] = rate
    outages = tuple(
        Outage(
            dice.uniform(0, load_s), dice.uniform(0.3, 0.3 + load_s / 4), dice.choice(OUTAGES), dice.choice(BROWNOUTS)
        )
        for _ in range(dice.choice((0, 1, 2) if rough > 0.1 else (0, 0, 0, 1)))
    )
    # A store that forgets is a storm of its own: a holder that dies in the same second takes what it knew with it, and
    # under a fresh key nobody can know that the order is being paid.
    forgets = contract in {"replayed", "reexecuted"} and dice.random() < 0.2
    stormy = not forgets and dice.random() < 0.6  # what befalls sidecars and their store
    journal = not forgets and dice.random() < 0.5
    # Drawn apart: whatever is drawn here moves nothing of the rest.
    more, late = stream(seed, "mix, and more"), stream(seed, "mix, who comes late")
    lag_s = dice.choice((1.0, 3.0, 3.0)) if "late_commit" in faults else dice.choice((0.0, 0.0, 1.0, 3.0))
    if more.random() < (0.6 if _WORKED_ON_LONG & faults.keys() else 0.1):
        lag_s = more.choice(LONG_LAGS_S)
    sidecars = dice.choice((1, 1, 2, 3) if not journal else (2, 3, 3))
    # One that is cut off matters where another one, whose journal answers, takes up what it left.
    cuts_off = not forgets and rough > 0.1 and more.random() < (0.5 if journal else 0.7)
    sidecars = max(2, sidecars) if cuts_off else sidecars
    mix = Mix(
        seed=seed,
        payments=payments,
        contract=contract,
        asks=asks,
        webhooks=webhooks,
        returns_late=late.choice((0.0, 0.2, 0.5)) if window_s < SHORT_WINDOW_S else 0.0,
        fallback=dice.random() < 0.25,
        window_s=window_s,
        lag_s=lag_s,
        stale_looks=more.choice((0.0, 0.0, 0.3, 0.7)),
        # Where nobody can be asked, a second attempt mostly ends the doubt that somebody should come back to.
        attempts=min(dice.choice((1, 2, 3, 3, 5)), 1 if not asks and late.random() < 0.6 else 5),
        deadline_s=dice.choice((3, 6, 15)),
        resend_for_s=min(dice.choice((0, 45, 45, 45) if asks else (0, 0, 45, 45)), int(window_s * 0.8)),
        harvest_s=dice.choice((0.0, 0.0, 5.0, 20.0) if "late_commit" in faults else (0.0, 5.0, 20.0, 20.0)),
        schedule=dice.choice((DENSE, SPARSE, SPARSE)),
        sidecars=sidecars,
        rate_per_s=payments / load_s,
        weather_s=load_s + 2.0,
        new_connections=dice.choice((0.1, 0.5)),
        connects_s=dice.choice((0.02, 0.4)),
        faults=faults,
        outages=outages,
        webhook_modes=modes if asks or "never" in modes else (*modes, "never"),
        tells=dice.choice((0.02, 0.1, 1.0) if rough > 0.1 else (0.02, 0.02, 0.1)),
        retires=dice.random() < 0.6,
        hangs_up=sometimes(0.5, 0.2),
        hurries=sometimes(0.4, 0.2),
        goes_elsewhere=more.choice((0.0, 0.5, 1.0)),
        fresh_key=sometimes(0.4, 0.4) if not forgets else 0.0,
        other_payload=max(sometimes(0.3, 0.1), more.choice((0.0, 0.0, 0.1, 0.3)) * max(rough, 0.1)),
        twice_at_once=sometimes(0.4, 0.15),
        again_after_answer=sometimes(0.3, 0.1),
        declines=sometimes(0.6, 0.2),
        open_ends=sometimes(0.4, 0.1),
        authorizations=sometimes(0.3, 0.3),
        follow_ups=sometimes(0.4, 0.3),
        payouts=sometimes(0.3, 0.2),
        patience=dice.choice((1, 2, 3, 5)),
        crashes=dice.choice((0, 1, 2, 4)) if stormy else 0,
        crashes_at_steps=more.choice((0, 0, 1, 2)) if stormy else 0,
        pauses=dice.choice((0, 1, 2)) if stormy else 0,
        pauses_connecting=more.choice((0, 0, 1, 2)) if not forgets else 0,
        suspends=dice.random() < 0.6,
        clock_jumps=dice.choice((0, 2)) if stormy else 0,
        operators=dice.choice((0, 0, 5, 20)),
        reloads=dice.choice((0, 0, 1, 3)),
        journal_latency=dice.choice((0.0, 0.0, 0.002)),
        journal_lost_replies=dice.choice((0.0, 0.005, 0.03)) * rough if journal else 0.0,
        journal_refusals=dice.choice((0.0, 0.005, 0.03)) * rough if journal else 0.0,
        journal_late_writes=dice.choice((0.0, 0.005)) * rough if journal else 0.0,
        journal_stalls=dice.choice((0, 1, 2)) if journal else 0,
        cut_offs=max(dice.choice((0, 1, 1, 2)) if journal else 0, int(cuts_off)),
        failovers=dice.choice((1, 2)) if forgets else 0,
        spool=dice.random() < 0.9,
        events=dice.random() < 0.2,
    )
    return _with_more_causes(mix) if mix.fallback else mix


PATIENT_S = 100  # longer than `settle` and every lag: such a caller still waits when something is shown to be absent


def _with_more_causes(mix: Mix) -> Mix:
    """A world with two routes in which the first is left for more causes. Drawn apart, as above."""
    dice = stream(mix.seed, "mix, why another route")
    absent, rejected = mix.asks and dice.random() < 0.5, dice.random() < 0.5
    deadline_s = PATIENT_S if absent else mix.deadline_s
    return replace(mix, leaves_if_absent=absent, leaves_if_rejected=rejected, deadline_s=deadline_s)
