"""Where events go and how: one frozen value, read from JSON as PUT /_sandbox/webhooks takes it.

{"url": "http://127.0.0.1:8700/paywitness/webhooks/acme", "secret": "whsec_test", "scheme": "hmac_sha256",
 "mode": "normal", "delay_s": 0, "events": ["charge.*", "refund.succeeded"], "tries_max": 5}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from proxy.sandbox.webhooks.mode import Mode, mode_called
from proxy.sandbox.webhooks.signature import Scheme

DELAY_S_MAX = 3600.0
TRIES_DEFAULT = 5
TRIES_MAX = 20
FILTERS_MAX = 100
KNOWN = ("url", "secret", "scheme", "mode", "delay_s", "events", "tries_max")


class BadEndpoint(ValueError):
    """Says what is wrong; the endpoint in force stays."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    url: str
    secret: str
    scheme: Scheme
    mode: Mode
    delay_s: float
    events: tuple[str, ...]
    """Types, or `charge.*`; empty for all."""
    tries_max: int

    def wants(self, type: str) -> bool:
        family = type.partition(".")[0] + ".*"
        return not self.events or type in self.events or family in self.events

    def as_json(self) -> dict[str, object]:
        """For showing. The secret is not shown."""
        return {
            "url": self.url,
            "scheme": self.scheme,
            "mode": str(self.mode),
            "delay_s": self.delay_s,
            "events": list(self.events),
            "tries_max": self.tries_max,
        }


def parse_endpoint(source: Mapping[str, object]) -> Endpoint:
    """Raises BadEndpoint, or UnknownMode for a mode that is none."""
    if unknown := set(source) - set(KNOWN):
        raise BadEndpoint(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(KNOWN)}")
    scheme = source.get("scheme", Scheme.HMAC_SHA256)
    if scheme not in list(Scheme):
        raise BadEndpoint(f"scheme is one of {', '.join(Scheme)}")
    secret, mode = source.get("secret"), source.get("mode", "normal")
    if not isinstance(secret, str) or not secret:
        raise BadEndpoint("secret is a text, and not an empty one")
    if not isinstance(mode, str):
        raise BadEndpoint("mode is the name of a mode")
    return Endpoint(
        url=_url(source.get("url")),
        secret=secret,
        scheme=Scheme(str(scheme)),
        mode=mode_called(mode),
        delay_s=_delay_s(source.get("delay_s", 0.0)),
        events=_events(source.get("events", [])),
        tries_max=_tries_max(source.get("tries_max", TRIES_DEFAULT)),
    )


def _url(value: object) -> str:
    try:
        parts = urlsplit(value if isinstance(value, str) else "")
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise BadEndpoint("url is an address that begins with http:// or https://")
    return str(value)


def _delay_s(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= DELAY_S_MAX:
        raise BadEndpoint(f"delay_s is a number from 0 to {DELAY_S_MAX:g}")
    return float(value)


def _events(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or len(value) > FILTERS_MAX:
        raise BadEndpoint(f"events is a list of at most {FILTERS_MAX} types")
    if not all(isinstance(item, str) and item for item in value):
        raise BadEndpoint("events holds types, like charge.succeeded or charge.*")
    return tuple(value)


def _tries_max(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= TRIES_MAX:
        raise BadEndpoint(f"tries_max is a whole number from 1 to {TRIES_MAX}")
    return value
