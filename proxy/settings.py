"""Settings: flags, environment and `paywitness.yaml` joined into one frozen value, read once at start.

A flag wins over the environment, the environment over the file, the file over the default. Secrets come from the
environment alone; a journal of our own (SQLite) makes and keeps them beside itself, readable by its owner only.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from proxy.core.errors import SettingsError

IDENTITY_SECRET = "PAYWITNESS_IDENTITY_SECRET"
ENCRYPTION_KEYS = "PAYWITNESS_ENCRYPTION_KEYS"
ADMIN_TOKEN = "PAYWITNESS_ADMIN_TOKEN"


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
    limits: str = "local"
    home: Path = Path(".paywitness")
    sandbox: Address | None = None  # the sandbox provider beside the proxy; None: not started
    log_level: str = "info"
    lease_s: float = 30.0
    grace_s: float = 25.0  # below Kubernetes' 30 s
    calls_max: int = 1_000

    @property
    def journal_path(self) -> Path:
        """Where the embedded journal stands: sqlite:///relative or sqlite:////absolute."""
        parts = urlsplit(self.journal)
        if parts.scheme != "sqlite" or parts.netloc or parts.query or len(parts.path) < 2:
            raise SettingsError(
                f"--journal {self.journal!r}: this version keeps its journal in SQLite: sqlite:///relative/path.db or "
                "sqlite:////absolute/path.db"
            )
        return Path(parts.path[1:])


def read_address(text: str, name: str) -> Address:
    """`host:port`, `[::1]:port`."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise SettingsError(f"{name} {text!r}: give host:port, for example 127.0.0.1:8700")
    return Address(host, int(port))


def check_limits(text: str) -> str:
    if text != "local":
        raise SettingsError(f"--limits {text!r}: this version keeps its limits in the process: local")
    return text


def kept_secret(path: Path, make: Callable[[], str]) -> str:
    """The secret in the file, or a fresh one written there with mode 0600. Never overwritten."""
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
