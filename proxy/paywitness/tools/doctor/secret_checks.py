"""The secrets: present, well formed, hard to guess, and readable by their owner only. And the local CA. No finding
shows a secret.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from paywitness.core.errors import PolicyError, SettingsError
from paywitness.option_defaults import ADMIN_TOKEN, ENCRYPTION_KEYS, EVENTS_SECRET, IDENTITY_SECRET, Settings
from paywitness.policy.book import load_directory
from paywitness.secrets import read_identity_secret, read_ring
from paywitness.tools.doctor.runner import DoctorFinding, ok, unfit, warning
from paywitness.transparent.ca_files import LocalCaFiles
from paywitness.transparent.local_ca import LocalCa, utc_datetime

# With about 64 symbols, 16 random bytes need 22 characters. People choose worse than chance, so we ask for more.
_LENGTH_MIN = 32
_SYMBOLS_MIN = 10
_TOKEN_LENGTH_MIN = 16


@dataclass(frozen=True, slots=True)
class FoundSecret:
    """A secret and its source."""

    text: str
    source: str
    file: Path | None = None


def find_secret(name: str, file: Path | None, environment: Mapping[str, str]) -> FoundSecret | None:
    """The secret as a start would find it, or None. It creates none. Raises OSError if the file cannot be read."""
    if value := environment.get(name):
        return FoundSecret(value, name)
    if file is None or not file.exists():
        return None
    return FoundSecret(file.read_text().strip(), str(file), file)


def identity_secret(settings: Settings, environment: Mapping[str, str]) -> bytes | None:
    """The identity secret, or None if there is none or it is not valid."""
    try:
        secret = find_secret(IDENTITY_SECRET, _file_beside_journal(settings, "identity"), environment)
        return read_identity_secret(secret.text) if secret is not None else None
    except (SettingsError, OSError):
        return None


def _file_beside_journal(settings: Settings, name: str) -> Path | None:
    path = settings.journal_path
    return path.with_name(f"{path.name}.{name}") if path is not None else None


def secret_findings(settings: Settings, environment: Mapping[str, str]) -> Iterator[DoctorFinding]:
    yield from _journal_secret(
        settings, environment, IDENTITY_SECRET, "identity", "identity secret", read_identity_secret
    )
    yield from _journal_secret(settings, environment, ENCRYPTION_KEYS, "keys", "encryption keys", _ring)
    yield from _token_findings(settings, environment)
    if settings.events is not None and not environment.get(EVENTS_SECRET):
        why = "a start is refused: anybody could forge unsigned events"
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
) -> Iterator[DoctorFinding]:
    subject, file = f"secrets {suffix}", _file_beside_journal(settings, suffix)
    try:
        secret = find_secret(name, file, environment)
    except (OSError, ValueError) as error:
        yield unfit(subject, f"{file} cannot be read ({_reason(error)})", "a start is refused", "Give it to our user")
        return
    if secret is None:
        yield _missing(settings, name, what, subject, file)
        return
    try:
        read(secret.text)
    except SettingsError as error:
        remedy = f"Restore {what} of {secret.source}; for a new journal: openssl rand -base64 32"
        yield unfit(subject, f"{error} (from {secret.source})", "a start is refused", remedy)
        return
    if suffix == "identity" and _is_weak(secret.text):
        why = "whoever guesses it can forge the keys of calls"
        remedy = "Only for a new journal, never for one in use: openssl rand -base64 32"
        yield warning(subject, f"the secret of {secret.source} is short or uniform", why, remedy)
    else:
        yield ok(subject, f"from {secret.source}")
    yield from _mode_findings(subject, secret)


def _missing(settings: Settings, name: str, what: str, subject: str, file: Path | None) -> DoctorFinding:
    path = settings.journal_path
    if path is None or file is None:
        why = "a fleet's sidecars recognise each other's payments only with the same secrets; a start is refused"
        return unfit(subject, f"{name} not set", why, f"Set {name}, the same for every sidecar")
    if path.exists() and path.stat().st_size:
        why = "a new one would not fit the journal"
        return unfit(subject, f"{path} exists, and its {what} {file} does not", why, f"Restore it, or set {name}")
    return ok(subject, f"none yet: the first start makes {file}, mode 0600")


def _token_findings(settings: Settings, environment: Mapping[str, str]) -> Iterator[DoctorFinding]:
    subject, file = "secrets admin token", settings.home / "admin-token"
    try:
        secret = find_secret(ADMIN_TOKEN, file, environment)
    except (OSError, ValueError) as error:
        yield unfit(subject, f"{file} cannot be read ({_reason(error)})", "a start is refused", "Give it to our user")
        return
    if secret is None:
        yield ok(subject, f"none yet: the first start makes {file}, mode 0600")
        return
    if not secret.text:
        yield unfit(subject, f"{secret.source} is empty", "a start is refused", "Remove it: a start makes another")
        return
    if len(secret.text) < _TOKEN_LENGTH_MIN:
        why = "whoever guesses it can state how payments ended"
        yield warning(subject, f"the token of {secret.source} is short", why, "Use another: openssl rand -hex 24")
    else:
        yield ok(subject, f"from {secret.source}")
    yield from _mode_findings(subject, secret)


def _mode_findings(subject: str, secret: FoundSecret) -> Iterator[DoctorFinding]:
    if secret.file is None:
        return
    mode = secret.file.stat().st_mode & 0o777
    if mode & 0o007:
        found = f"{secret.file} has mode {mode:04o}"
        yield unfit(subject, found, "every user of this machine can read it", f"chmod 600 {secret.file}")
    elif mode & 0o070:
        # Kubernetes gives the files of a volume to a group, which may be ours alone.
        found = f"{secret.file} has mode {mode:04o}"
        yield warning(subject, found, "its group can read it", f"chmod 600 {secret.file}")


def _is_weak(text: str) -> bool:
    return len(text.strip()) < _LENGTH_MIN or len(set(text.strip())) < _SYMBOLS_MIN


def _reason(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or type(error).__name__


# --- Local CA
# The local authority: the hosts that it covers, its end, and who can read its key.

_SOON = timedelta(days=30)
_ROTATE = "`paywitness ca rotate`, let services load the bundle, then `paywitness ca rotate --finish`"


def local_ca_findings(settings: Settings, now: float) -> Iterator[DoctorFinding]:
    files = LocalCaFiles(settings.home)
    try:
        authority = files.read()
    except SettingsError as error:
        yield unfit("authority", str(error), "a start is refused", "Restore them, or remove ca.pem and ca.key")
        return
    if authority is None:
        yield ok("authority", "none: calls come by our own address; `paywitness ca init` lets them come by HTTPS_PROXY")
        return
    yield ok("authority key", "only its owner can read it")
    yield from _coverage_findings(authority, settings)
    yield from _expiry_findings(authority, now)
    if not files.bundle_for_services.is_file():
        why = "services that are configured with it do not start, or trust nobody"
        yield warning("authority bundle", f"{files.bundle_for_services} is missing", why, "`paywitness ca init`")


def _coverage_findings(authority: LocalCa, settings: Settings) -> Iterator[DoctorFinding]:
    try:
        book = load_directory(settings.policies)
    except PolicyError:
        return  # the check of the policies reports it
    missing = authority.missing({host for provider in book.providers.values() for host in provider.hosts})
    if missing:
        found = f"it does not cover {', '.join(missing)}"
        why = "calls to these hosts by HTTPS_PROXY or redirect are refused"
        yield warning("authority", found, why, "`paywitness ca init`")
    else:
        yield ok("authority", "covers every host of the policies")


def _expiry_findings(authority: LocalCa, now: float) -> Iterator[DoctorFinding]:
    until = f"{authority.ends_at:%Y-%m-%d}"
    left = authority.ends_at - utc_datetime(now)
    if left <= timedelta(0):
        yield unfit("authority end", f"it ended on {until}", "no client trusts it any more", _ROTATE)
    elif left < _SOON:
        yield warning("authority end", f"it ends on {until}", "from then on no client trusts it", _ROTATE)
    else:
        yield ok("authority end", until)
