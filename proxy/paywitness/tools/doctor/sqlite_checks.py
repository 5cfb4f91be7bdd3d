"""The SQLite journal and the spool: their directories, the disk, the process that holds the journal, and its identity.

The check never takes the journal's lock: a sidecar that starts at this moment must find it free. The holder is read
from the kernel's list of locks, the identity from the file without a lock.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from paywitness.core.identity import check_value
from paywitness.journal.sqlite.schema import APPLICATION_ID
from paywitness.option_defaults import Settings
from paywitness.tools.doctor.runner import DoctorFinding, ok, unfit, warning
from paywitness.tools.doctor.secret_checks import identity_secret

_MIB = 1 << 20
_FREE_WARN_MIB = 1024  # about half a million ended operations at 2 KiB each
_FREE_UNFIT_MIB = 64  # the log alone grows to 8 MiB between two checkpoints, and a temporary file needs room too
_READ_TIMEOUT_S = 1.0

_REMOTE_FILE_SYSTEMS = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "glusterfs", "lustre", "afs", "fuse")
_VOLATILE_FILE_SYSTEMS = {"tmpfs": "memory: a reboot loses it", "ramfs": "memory: a reboot loses it"}
_VOLATILE_FILE_SYSTEMS["overlay"] = "a container's own layer: it is lost with the container"


def sqlite_findings(path: Path, settings: Settings, environment: Mapping[str, str]) -> Iterator[DoctorFinding]:
    path = Path(os.path.realpath(path))  # as the journal itself does
    yield from directory_findings("journal", path.parent)
    if not path.exists():
        yield ok("journal file", f"{path}: none yet, the first start makes it")
        return
    if not path.is_file() or not os.access(path, os.R_OK | os.W_OK):
        yield unfit("journal file", f"{path} is no writable file", "a start is refused", "Give it to our user")
        return
    holder = _lock_holder(path.with_name(f"{path.name}.lock"))
    if holder is not None:
        yield ok("journal held", f"process {holder} holds {path}: a sidecar runs on it; a second would not start")
    else:
        yield ok("journal held", f"no process visible from here holds {path}")
    yield from _identity_findings(path, identity_secret(settings, environment), running=holder is not None)


def directory_findings(component: str, directory: Path) -> Iterator[DoctorFinding]:
    """Whether files can be made in the directory, its free space, and its file system."""
    there = _nearest_existing(directory)
    try:
        # For a directory that does not exist yet this tries the nearest parent. Nothing stays behind.
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        why = "a call that cannot be recorded is not sent"
        remedy = f"Let our user (uid {os.geteuid()}) write there, or name another directory"
        yield unfit(f"{component} directory", f"{directory}: {there} takes no files ({error.strerror})", why, remedy)
        return
    yield ok(f"{component} directory", f"{directory}: files can be made")
    free_mib = shutil.disk_usage(there).free // _MIB
    room_left = f"{free_mib:,} MiB free"
    if free_mib < _FREE_WARN_MIB:
        make_finding = unfit if free_mib < _FREE_UNFIT_MIB else warning
        yield make_finding(
            f"{component} disk", room_left, "a full disk stops every payment", "Make room, or shorten --retention"
        )
    else:
        yield ok(f"{component} disk", room_left)
    yield _file_system_finding(f"{component} file system", there)


def _nearest_existing(directory: Path) -> Path:
    """The directory, or its nearest parent that exists."""
    directory = Path(os.path.realpath(directory))
    while not directory.exists() and directory != directory.parent:
        directory = directory.parent
    return directory


def _file_system_finding(subject: str, directory: Path) -> DoctorFinding:
    kind = _file_system(directory)
    if kind is None:
        return ok(subject, "unknown on this system")
    if kind in _REMOTE_FILE_SYSTEMS or kind.startswith("fuse."):
        why = "locks and fsync of remote file systems are not reliable"
        return warning(subject, kind, why, "Use a local disk; for several machines a Redis journal")
    if kind in _VOLATILE_FILE_SYSTEMS:
        return warning(subject, kind, _VOLATILE_FILE_SYSTEMS[kind], "Use a disk or a volume that survives")
    return ok(subject, kind)


def _file_system(directory: Path) -> str | None:
    """The type of the deepest mount that holds the directory, from the kernel's list. Of equal ones the last is on
    top."""
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return None
    found, depth = None, -1
    for line in lines:
        before, _, after = line.partition(" - ")
        point = Path(before.split(" ")[4].replace("\\040", " "))
        if directory.is_relative_to(point) and len(point.parts) >= depth:
            found, depth = after.split(" ")[0], len(point.parts)
    return found


def _lock_holder(lock: Path) -> str | None:
    """The process that has locked the file, if the kernel shows it (not from another container)."""
    try:
        status = lock.stat()
        noted_process = lock.read_text().strip()
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    device_and_inode = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    for line in lines:
        words = line.split()
        if "FLOCK" not in words or "->" in words:
            continue
        process, where = words[-4], words[-3]
        # Some file systems (btrfs) list another device than `stat`. Then the process number in the file decides.
        if where == device_and_inode or (where.endswith(f":{status.st_ino}") and process == noted_process):
            return process
    return None


def _identity_findings(path: Path, secret: bytes | None, *, running: bool) -> Iterator[DoctorFinding]:
    subject = "journal identity"
    # Without a sidecar the file is read as it is, without locks and without making a log. A running sidecar has a log.
    how = "mode=ro" if running else "immutable=1"
    try:
        connection = sqlite3.connect(f"{path.as_uri()}?{how}", uri=True, timeout=_READ_TIMEOUT_S)
        try:
            application = connection.execute("PRAGMA application_id").fetchone()[0]
            row = connection.execute("SELECT value FROM meta WHERE name = 'identity_check'").fetchone()
        finally:
            connection.close()
    except sqlite3.Error as error:
        yield _unreadable_finding(subject, path, error)
        return
    if application != APPLICATION_ID:
        yield unfit(subject, f"{path} is a foreign database", "a start is refused", "Name another --journal")
    elif row is None:
        yield ok(subject, "the file has none yet: the first start sets it")
    elif secret is None:
        yield ok(subject, "skipped: there is no identity secret to compare")
    elif row[0] != check_value(secret):
        why = "with another secret no earlier payment is recognised; a start is refused"
        yield unfit(
            subject, f"{path} was written with another secret", why, "Restore its secret, or name another journal"
        )
    else:
        yield ok(subject, "the file was written with this secret")


def _unreadable_finding(subject: str, path: Path, error: sqlite3.Error) -> DoctorFinding:
    if getattr(error, "sqlite_errorname", "") == "SQLITE_NOTADB":
        return unfit(subject, f"{path} is no SQLite database", "a start is refused", "Name another --journal")
    if not path.stat().st_size or "no such table" in str(error):
        return ok(subject, "skipped: the file alone does not show it; the next start compares")
    why = "the next start compares, and reports a damaged file"
    return warning(subject, f"could not be read now ({error})", why, "Run this again while no sidecar starts or stops")
