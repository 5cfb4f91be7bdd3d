"""Every option of `paywitness run`, with its default. The numbers of a policy are in core/policy_defaults.py.

`Settings` joins flags, environment and `paywitness.yaml` into one frozen value, read once at start. A flag wins over
the environment, the environment over the file, the file over the default. Secrets come only from the environment. With
a SQLite journal the sidecar may also make and keep them beside it, readable by their owner only.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

from paywitness.core.allowed_hosts import AllowedHosts, read_allowed_hosts
from paywitness.core.errors import SettingsError

IDENTITY_SECRET = "PAYWITNESS_IDENTITY_SECRET"
ENCRYPTION_KEYS = "PAYWITNESS_ENCRYPTION_KEYS"
ADMIN_TOKEN = "PAYWITNESS_ADMIN_TOKEN"
EVENTS_SECRET = "PAYWITNESS_EVENTS_SECRET"

SHARED_JOURNAL_SCHEMES = ("redis", "rediss", "redis+sentinel", "rediss+sentinel")
OFF = "off"
LOCAL = "local"
_DURATION = re.compile(r"([0-9]{1,9})(ms|s|m|h|d)\Z")
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Unlisted(StrEnum):
    """What happens to a host that no policy names. It is never intercepted."""

    REFUSE = "refuse"
    TUNNEL = "tunnel"


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self}"


@dataclass(frozen=True, slots=True)
class Settings:
    policies: Path
    listen: Address = Address("127.0.0.1", 8700)
    admin: Address = Address("127.0.0.1", 8701)
    journal: str = "sqlite:///.paywitness/journal.db"
    limits: str = LOCAL
    home: Path = Path(".paywitness")
    sandbox: Address | None = None  # the sandbox provider beside the sidecar; None: not started
    log_level: str = "info"
    log_calls: str = "notable"  # all: clean first-try successes are logged at info too
    lease_s: float = 30.0
    grace_s: float = 25.0  # below Kubernetes' 30 s
    # After SIGTERM the sidecar is not ready but still serves, so that load balancers see it. The grace time follows.
    drain_delay_s: float = 0.0
    calls_max: int = 1_000
    reuse_port: bool = False  # other sidecars of this machine may share our listen and webhook ports
    unlisted: Unlisted = Unlisted.REFUSE  # for callers that use us as a proxy
    webhooks: Address | None = Address("127.0.0.1", 8703)  # separate, because it may be public; None: not started
    webhook_body_bytes: int = 256 * 1024  # of one webhook; providers send a few kilobytes
    webhook_rate: int = 10  # of one address that fail verification, a second
    trusted_proxies: tuple[Network, ...] = ()  # the proxies whose X-Forwarded-For names a webhook's sender
    allowed_hosts: AllowedHosts = AllowedHosts()  # host names of the payment port and the admin port
    events: str | None = None  # the sink of ends, doubts, resolutions and incidents
    retention_s: float = 30 * 86400.0  # an ended operation is kept whole for this long
    tombstones_s: float = 90 * 86400.0  # and its key is known for this long after that
    # Payments, their names and payout references. Longer than any refund or chargeback takes, and than `retention_s`.
    payments_kept_s: float = 400 * 86400.0
    resolvers: int = 16  # operations that the resolver handles at once
    resolvers_per_provider: int = 8  # so that one slow provider does not hold up the others
    late_response_s: float = 20.0  # how long we wait for a late response; 0: not at all
    spool: Path | None = None  # None: in `home`, with the rest of our own files

    @property
    def kept_for_s(self) -> tuple[float, float, float]:
        """How long ended operations, their tombstones and payments are kept. A payment is kept at least as long as the
        operations that made it."""
        return self.retention_s, self.tombstones_s, max(self.payments_kept_s, self.retention_s)

    @property
    def spool_directory(self) -> Path:
        """The directory for evidence that the journal did not take."""
        return self.spool if self.spool is not None else self.home / "spool"

    @property
    def journal_redacted_url(self) -> str:
        """The journal's address without its user and its query, either of which could hold a password."""
        return redacted_url(self.journal)

    @property
    def journal_path(self) -> Path | None:
        """The file of a SQLite journal: sqlite:///relative or sqlite:////absolute. None for a Redis journal."""
        parts = urlsplit(self.journal)
        if parts.scheme in SHARED_JOURNAL_SCHEMES:
            return None
        if parts.scheme != "sqlite" or parts.netloc or parts.query or len(parts.path) < 2:
            raise SettingsError(
                f"--journal {self.journal_redacted_url!r}: give sqlite:///relative/path.db or sqlite:////absolute/path.db"
                " for one sidecar, redis://host:6379/0 (rediss://, redis+sentinel://) for a fleet"
            )
        return Path(parts.path[1:])


DEFAULTS = Settings(policies=Path())  # every default except the policies; options and checks take defaults from here
SANDBOX = Address("127.0.0.1", 8702)  # the sandbox provider's address, if it is started


def redacted_url(url: str) -> str:
    """An address without secrets, for printing. A password may hold any character, so everything before the last @ is
    cut."""
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2].partition('?')[0]}" if separator else url.rpartition("@")[2]


def read_address(text: str, name: str) -> Address:
    """`host:port`, `[::1]:port`, or the same as a URL: `http://host:port`. For the sidecar PAYWITNESS_ADMIN is the
    address of a listener, and for the commands that call it the URL of a port."""
    host, colon, port = text.removeprefix("http://").removesuffix("/").rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or "/" in host or not port.isdigit() or int(port) > 65535:
        raise SettingsError(f"{name} {text!r}: give host:port, for example 127.0.0.1:8700")
    return Address(host, int(port))


def read_names(text: str, name: str) -> AllowedHosts:
    """`pay.example.com,*.internal.example.com`."""
    try:
        return read_allowed_hosts(_listed(text))
    except ValueError as error:
        raise SettingsError(
            f"{name} {str(error)!r}: give names, or *.name, without ports, with commas between"
        ) from None


def read_networks(text: str, name: str) -> tuple[Network, ...]:
    """`10.0.0.0/8,fd00::/8,192.0.2.1`."""
    try:
        return tuple(ipaddress.ip_network(each) for each in _listed(text))
    except ValueError as error:
        raise SettingsError(f"{name}: {error}; give addresses or networks such as 10.0.0.0/8") from None


def _listed(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]


def read_listener(text: str, name: str) -> Address | None:
    """An address, or `off`."""
    return None if text == OFF else read_address(text, name)


def read_duration(text: str, name: str, *, least_s: float, most_s: float) -> float:
    """`300ms`, `2s`, `5m`, `24h`, `30d`, as in a policy. If zero is allowed, also `0` or `off`."""
    if text in {"0", OFF} and least_s == 0:
        return 0.0
    found = _DURATION.match(text)
    if found is None:
        raise SettingsError(f"{name} {text!r}: give a duration such as 300ms, 2s, 5m, 24h or 30d")
    seconds = round(int(found[1]) * _UNITS_S[found[2]], 3)
    if not least_s <= seconds <= most_s:
        raise SettingsError(f"{name} {text!r}: give {option_text(least_s)} to {option_text(most_s)}")
    return seconds


def option_text(seconds: float) -> str:
    """A duration in the form that `read_duration` reads, in the largest unit that divides it."""
    unit = next(unit for unit in ("d", "h", "m", "s") if seconds % _UNITS_S[unit] == 0)
    return f"{seconds / _UNITS_S[unit]:.0f}{unit}" if seconds else "0"


def read_sink(text: str, name: str) -> str:
    """The address of the events sink. It must hold no user or password, because it is logged."""
    try:
        parts = urlsplit(text)
        valid = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
        if valid and parts.username is None and not parts.fragment and text.isprintable() and " " not in text:
            return text
    except ValueError:
        pass  # brackets or a port that are not valid: refused like the rest
    raise SettingsError(f"{name}: give http://host/path or https://host/path, without user, password or fragment")


def load_or_create_secret(path: Path, make: Callable[[], str]) -> str:
    """The secret in the file, or a fresh one, stored there with mode 0600. An existing file is never overwritten."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with contextlib.suppress(FileExistsError):  # it is there: read it
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(make() + "\n")
            file.flush()
            os.fsync(file.fileno())
    text = path.read_text().strip()
    if not text:
        raise SettingsError(f"{path} is empty: restore it, or remove it if the journal beside it is new")
    return text
