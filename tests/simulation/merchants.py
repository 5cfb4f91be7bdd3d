"""Merchants of a world: whose credentials a call carries, and which of them the provider takes.

A world may have a twin: a second merchant at the same provider, behind the same sidecars, with the keys, orders and
amounts of the first, and books of its own. `selector`: a header of the call names the account. `owners`: nothing in the
call does, and the provider is asked whose a credential is; the account is its first owner's. `many`: likewise, and
each owner has an account of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from paywitness.core.call import Headers
from paywitness_sandbox.messages import Request
from tests.simulation.swarm import Mix, stream

MERCHANT_HEADER = "X-Merchant"
ACCOUNT_PATH = "/v1/account"
TWIN = "twin"


@dataclass
class Merchant:
    """Whose calls these are."""

    name: str = "shop"
    rotated_mono: float = math.inf  # from then on it uses another credential
    overlap_s: float = 0.0  # so long after that the provider still takes the first

    @property
    def prefix(self) -> str:
        """Of what its calls are about, so that histories keep merchants apart."""
        return "" if self.name == "shop" else f"{self.name}/"

    def headers(self, now_mono: float) -> Headers:
        token = self.name if now_mono < self.rotated_mono else f"{self.name}-2"
        return (
            (b"Content-Type", b"application/json"),
            (b"Authorization", f"Bearer {token}".encode()),
            (MERCHANT_HEADER.encode(), self.name.encode()),
        )

    def is_known(self, request: Request, now_mono: float) -> bool:
        """Whether the provider takes the credential of a request."""
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if token == self.name:
            return now_mono < self.rotated_mono + self.overlap_s
        return token == f"{self.name}-2" and now_mono >= self.rotated_mono


def merchant_named(name: str, mix: Mix, begins_mono: float) -> Merchant:
    dice = stream(mix.seed, f"credentials of {name}")
    if not mix.rotates:
        return Merchant(name)
    load_s = mix.payments / mix.rate_per_s
    return Merchant(name, begins_mono + dice.uniform(0.1, 0.6) * load_s, dice.choice((0.0, 2.0, 30.0)))
