"""Addresses of a namespace that leads nowhere. They are the internet's by their kind, and nobody's: those of AS112, and
those for documentation."""

from __future__ import annotations

UID, GID = 1337, 1338  # whom the sidecar runs as; one of them is enough
BANK = "192.31.196.7"
BANK_V6 = "2620:4f:8000::7"
PROVIDERS = {
    "api.stripe.com": ("203.0.113.1", "2001:db8::1"),
    "api.mollie.com": ("203.0.113.2", "2001:db8::2"),
    "api.checkout.com": ("203.0.113.3", "2001:db8::3"),
}
