"""Where the authority is kept: its certificate, its key (mode 0600), the next pair while it is changed, and the bundle.

The bundle is what clients are given: the system's roots and ours, for most of them take one file in place of their own.
Services that may not look into our directory read a copy of it elsewhere; beside each lies what Node's fetch needs.
A rotation has two steps, so that nobody is cut off: first the next certificate joins the bundle, which clients load;
then it signs.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from proxy.authority.certificates import Authority, make_authority, read_authority
from proxy.core.errors import SettingsError

_log = logging.getLogger("paywitness.authority")
_NODE_PROXY = Path(__file__).with_name("node_proxy.cjs")


@dataclass(frozen=True, slots=True)
class AuthorityFiles:
    home: Path

    @property
    def certificate(self) -> Path:
        return self.home / "ca.pem"

    @property
    def key(self) -> Path:
        return self.home / "ca.key"

    @property
    def next_certificate(self) -> Path:
        return self.home / "ca-next.pem"

    @property
    def next_key(self) -> Path:
        return self.home / "ca-next.key"

    @property
    def bundle(self) -> Path:
        return self.home / "ca-bundle.pem"

    @property
    def shared_bundle(self) -> Path | None:
        """The copy for services, where one was asked for."""
        try:
            return Path(self._shared_at.read_text().strip())
        except FileNotFoundError:
            return None

    @property
    def bundle_for_services(self) -> Path:
        return self.shared_bundle or Path(os.path.abspath(self.bundle))

    @property
    def _shared_at(self) -> Path:
        return self.home / "ca-shared-at"

    def read(self) -> Authority | None:
        """The authority in force; None where there is none. Raises SettingsError where it cannot be used."""
        return _read(self.certificate, self.key)

    def read_next(self) -> Authority | None:
        return _read(self.next_certificate, self.next_key)

    def begin(self, hosts: Iterable[str], now: datetime) -> Authority:
        """The first one, or the same one again for other hosts: its key stays, so whoever trusted it goes on."""
        before = self.read()
        authority = make_authority(hosts, now, key=before.key if before else None)
        if before is None:
            _write(self.key, authority.key_pem, secret=True)
        _write(self.certificate, authority.pem)
        self._write_bundle(authority, self.read_next())
        return authority

    def publish(self, shared: Path | None = None) -> None:
        """Write the bundle anew; from now on also to `shared`, for everybody to read."""
        if shared is not None:
            shared.absolute().parent.mkdir(parents=True, exist_ok=True)
            _write(self._shared_at, f"{os.path.abspath(shared)}\n".encode())
        self._write_bundle(self.read(), self.read_next())

    def prepare(self, hosts: Iterable[str], now: datetime) -> Authority:
        """The next one: in the bundle from now on, signing nothing yet. Prepared again it keeps its key, so whoever has
        loaded it goes on."""
        before = self.read_next()
        prepared = make_authority(hosts, now, key=before.key if before else None)
        if before is None:
            _write(self.next_key, prepared.key_pem, secret=True)
        _write(self.next_certificate, prepared.pem)
        self._write_bundle(self.read(), prepared)
        return prepared

    def take_over(self) -> Authority:
        """The next one signs. The one before stays in the bundle until the next change: its leaves live for a day."""
        before: Authority | None = None
        if self.next_key.exists() or not self.next_certificate.exists():  # else it was broken off half-way, before
            before, prepared = self.read(), self.read_next()
            if prepared is None:
                raise SettingsError("there is no next authority: prepare one first, with paywitness ca rotate")
            self.next_key.replace(self.key)
        self.next_certificate.replace(self.certificate)
        taken = self.read()
        assert taken is not None
        self._write_bundle(taken, before)
        return taken

    def _write_bundle(self, *authorities: Authority | None) -> None:
        ours = [authority.pem for authority in authorities if authority is not None]
        whole = b"".join([*ours, _system_roots()])
        for bundle in filter(None, (self.bundle, self.shared_bundle)):
            _write(bundle, whole)
            _write(node_proxy_beside(bundle), _NODE_PROXY.read_bytes())


def node_proxy_beside(bundle: Path) -> Path:
    """What makes Node's fetch look at HTTPS_PROXY: see `node_proxy.cjs` in this room."""
    return bundle.with_name(_NODE_PROXY.name)


class InForce:
    """The authority that signs now. Changed on disk, by `paywitness ca`, it is taken over with the next connection."""

    def __init__(self, files: AuthorityFiles) -> None:
        self._files = files
        self._authority: Authority | None = None
        self._seen = self._written()
        self._authority = files.read()  # raises where it cannot be used: better at the start than at the first call

    def __call__(self) -> Authority | None:
        seen = self._written()
        if seen != self._seen:
            self._seen = seen
            try:
                self._authority = self._files.read()
            except SettingsError as error:
                _log.error("%s; the one before stays in force", error)
        return self._authority

    def _written(self) -> tuple[int, int]:
        """Of which moment the files are; both must be there for a pair."""
        try:
            return self._files.certificate.stat().st_mtime_ns, self._files.key.stat().st_mtime_ns
        except OSError:
            return 0, 0


def _read(certificate: Path, key: Path) -> Authority | None:
    if not certificate.exists() and not key.exists():
        return None
    try:
        if key.stat().st_mode & 0o077:
            raise SettingsError(f"{key} can be read by others: chmod 600 {key}, and rotate if others may have read it")
        return read_authority(certificate.read_bytes(), key.read_bytes())
    except (OSError, ValueError) as error:
        words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise SettingsError(f"the authority in {certificate.parent} cannot be used: {words}") from None


def _system_roots() -> bytes:
    """What this machine trusts, as one file of certificates; empty where it has none."""
    found = ssl.get_default_verify_paths().cafile or ssl.get_default_verify_paths().openssl_cafile
    path = Path(found)
    return path.read_bytes() if path.is_file() else b""


def _write(path: Path, content: bytes, *, secret: bool = False) -> None:
    """Whole or not at all, and a secret never readable by others, not even for a moment."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    beside = path.with_name(f"{path.name}.new")
    beside.unlink(missing_ok=True)
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, 0o600 if secret else 0o644)  # whatever the mask of this process is
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
