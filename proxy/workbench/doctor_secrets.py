"""The secrets: there, well formed, hard to guess, and readable by their owner alone. Only said of, never shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from proxy.core.errors import SettingsError
from proxy.settings import ADMIN_TOKEN, ENCRYPTION_KEYS, EVENTS_SECRET, IDENTITY_SECRET, Settings
from proxy.vault import read_identity_secret, read_ring
from proxy.workbench.finding import Finding, ok, unfit, warning

_LENGTH_MIN = 32  # of 64 symbols or so: 16 bytes of chance need 22, and people choose worse than chance
_SYMBOLS_MIN = 10
_TOKEN_LENGTH_MIN = 16


@dataclass(frozen=True, slots=True)
class Kept:
    """A secret and where it comes from."""

    text: str
    where: str
    file: Path | None = None


def secret_of(name: str, file: Path | None, environment: Mapping[str, str]) -> Kept | None:
    """As a start would find it, or None. Raises OSError where its file cannot be read. Makes none."""
    if given := environment.get(name):
        return Kept(given, name)
    if file is None or not file.exists():
        return None
    return Kept(file.read_text().strip(), str(file), file)


def identity_secret(settings: Settings, environment: Mapping[str, str]) -> bytes | None:
    """None where there is none, or none that can be used."""
    try:
        kept = secret_of(IDENTITY_SECRET, _beside(settings, "identity"), environment)
        return read_identity_secret(kept.text) if kept is not None else None
    except (SettingsError, OSError):
        return None


def _beside(settings: Settings, name: str) -> Path | None:
    path = settings.journal_path
    return path.with_name(f"{path.name}.{name}") if path is not None else None


def secret_findings(settings: Settings, environment: Mapping[str, str]) -> Iterator[Finding]:
    yield from _journal_secret(
        settings, environment, IDENTITY_SECRET, "identity", "identity secret", read_identity_secret
    )
    yield from _journal_secret(settings, environment, ENCRYPTION_KEYS, "keys", "encryption keys", _ring)
    yield from _token_findings(settings, environment)
    if settings.events is not None and not environment.get(EVENTS_SECRET):
        why = "a start is refused: unsigned events could be anybody's"
        yield unfit("secrets events", f"{EVENTS_SECRET} not set", why, "Set it, or leave --events out")


def _ring(text: str) -> None:
    if not read_ring(text):
        raise SettingsError(f"{ENCRYPTION_KEYS} holds no key")


def _journal_secret(
    settings: Settings,
    environment: Mapping[str, str],
    name: str,
    suffix: str,
    what: str,
    read: Callable[[str], object],
) -> Iterator[Finding]:
    subject, file = f"secrets {suffix}", _beside(settings, suffix)
    try:
        kept = secret_of(name, file, environment)
    except (OSError, ValueError) as error:
        yield unfit(subject, f"{file} cannot be read ({_reason(error)})", "a start is refused", "Give it to our user")
        return
    if kept is None:
        yield _missing(settings, name, what, subject, file)
        return
    try:
        read(kept.text)
    except SettingsError as error:
        remedy = f"Restore {what} of {kept.where}; for a new journal: openssl rand -base64 32"
        yield unfit(subject, f"{error} (from {kept.where})", "a start is refused", remedy)
        return
    if suffix == "identity" and _is_weak(kept.text):
        why = "who guesses it can forge what calls are recognised by"
        remedy = "Only for a new journal, never under a living one: openssl rand -base64 32"
        yield warning(subject, f"the one of {kept.where} is short or uniform", why, remedy)
    else:
        yield ok(subject, f"from {kept.where}")
    yield from _mode_findings(subject, kept)


def _missing(settings: Settings, name: str, what: str, subject: str, file: Path | None) -> Finding:
    path = settings.journal_path
    if path is None or file is None:
        why = "a fleet's sidecars recognise each other's payments by the same secrets; a start is refused"
        return unfit(subject, f"{name} not set", why, f"Set {name}, the same for every sidecar")
    if path.exists() and path.stat().st_size:
        why = "a new one would not fit what the journal holds"
        return unfit(subject, f"{path} is there, and its {what} {file} is not", why, f"Restore it, or set {name}")
    return ok(subject, f"none yet: the first start makes {file}, mode 0600")


def _token_findings(settings: Settings, environment: Mapping[str, str]) -> Iterator[Finding]:
    subject, file = "secrets admin token", settings.home / "admin-token"
    try:
        kept = secret_of(ADMIN_TOKEN, file, environment)
    except (OSError, ValueError) as error:
        yield unfit(subject, f"{file} cannot be read ({_reason(error)})", "a start is refused", "Give it to our user")
        return
    if kept is None:
        yield ok(subject, f"none yet: the first start makes {file}, mode 0600")
        return
    if not kept.text:
        yield unfit(subject, f"{kept.where} is empty", "a start is refused", "Remove it: a start makes another")
        return
    if len(kept.text) < _TOKEN_LENGTH_MIN:
        why = "who guesses it can say how payments ended"
        yield warning(subject, f"the one of {kept.where} is short", why, "Use another: openssl rand -hex 24")
    else:
        yield ok(subject, f"from {kept.where}")
    yield from _mode_findings(subject, kept)


def _mode_findings(subject: str, kept: Kept) -> Iterator[Finding]:
    if kept.file is None:
        return
    mode = kept.file.stat().st_mode & 0o777
    if mode & 0o007:
        found = f"{kept.file} has mode {mode:04o}"
        yield unfit(subject, found, "every user of this machine reads it", f"chmod 600 {kept.file}")
    elif mode & 0o070:
        # Kubernetes gives the files of a volume to a group; that group may be ours alone.
        found = f"{kept.file} has mode {mode:04o}"
        yield warning(subject, found, "its group reads it", f"chmod 600 {kept.file}")


def _is_weak(text: str) -> bool:
    return len(text.strip()) < _LENGTH_MIN or len(set(text.strip())) < _SYMBOLS_MIN


def _reason(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or type(error).__name__
