"""What a provider may promise about a repeated key, and who can be asked: as edits of the policy that say the truth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tests.engine.storm import WITHOUT_KEYS

Edits = tuple[tuple[str, str], ...]

WEBHOOK_SECRET = "whsec_of_the_shop"
SETTLE_S = 32.0  # the least that a policy may ask for here: a lease, and the first byte's timeout

SOON: Edits = (
    (
        "schedule: [2s, 10s, 30s, 2m, 10m, 1h, 6h, 24h]",
        "schedule: [300ms, 600ms, 1s, 1500ms, 2s, 2500ms, 3s, 4s, 5s, 6s, 7s, 8s, 9s, 10s, 20s, 30s]",
    ),
    ("  first_byte: 5s ", "  first_byte: 2s "),
    ("settle: 10m ", f"settle: {SETTLE_S:.0f}s "),
    ("lag: 5s ", "lag: 1s "),
)
NOBODY_TO_ASK: Edits = (("    ask: *ask_for_a_charge ", "    # nobody to ask "),)
NO_WEBHOOK: Edits = (("    match: [POST /v1/charges, ", "    webhook: none\n    match: [POST /v1/charges, "),)
STORES: Mapping[str, Edits] = {
    "replayed": (),
    "reexecuted": (("errors_under_key: replayed ", "errors_under_key: reexecuted "),),
    "not_stored": (("errors_under_key: replayed ", "errors_under_key: not_stored "),),
    "none": WITHOUT_KEYS,
}


@dataclass(frozen=True)
class Case:
    stores: str  # what the provider does with a repeated key
    edits: Edits
    lost: int  # so many arrivals of one payment lose their answers
    webhook: bool = False
    evidence: bool = True

    @property
    def fault(self) -> str:
        return ",".join(["drop_after_commit"] * self.lost)

    @property
    def policy(self) -> Edits:
        return (*SOON, *STORES[self.stores], *self.edits)


CASES = {
    "replayed": Case("replayed", (*NOBODY_TO_ASK, *NO_WEBHOOK), 4),
    "reexecuted": Case("reexecuted", (*NOBODY_TO_ASK, *NO_WEBHOOK), 4),
    "not_stored_ask": Case("not_stored", NO_WEBHOOK, 1),
    "none_ask": Case("none", NO_WEBHOOK, 1),
    "none_webhook": Case("none", NOBODY_TO_ASK, 1, webhook=True),
    "none_at_all": Case("none", (*NOBODY_TO_ASK, *NO_WEBHOOK), 1, evidence=False),
}
KILLED = {
    "replayed": Case("replayed", (), 2),
    "not_stored_ask": Case("not_stored", (), 1),
    "none_ask": Case("none", (), 1),
}
