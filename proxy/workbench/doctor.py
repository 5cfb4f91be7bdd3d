"""Whether this installation is fit to hold money, and what to change: all checks in their order, within 15 s."""

from __future__ import annotations

from collections.abc import Mapping

from proxy.clock import Clock
from proxy.core.errors import SettingsError
from proxy.journal.redis_url import Place, place_of
from proxy.settings import Settings
from proxy.workbench.doctor_authority import authority_findings
from proxy.workbench.doctor_machine import machine_findings, port_findings
from proxy.workbench.doctor_policies import policy_findings
from proxy.workbench.doctor_redis import Purpose, examine_redis
from proxy.workbench.doctor_secrets import identity_secret, secret_findings
from proxy.workbench.doctor_sqlite import directory_findings, sqlite_findings
from proxy.workbench.examination import Examination, Say
from proxy.workbench.finding import Finding, Report, ok, unfit

_CLUSTER = "+cluster"


async def examine(settings: Settings, environment: Mapping[str, str], *, clock: Clock, say: Say) -> Report:
    """One check after the other. `say` is told what is slow."""
    examination = Examination(clock, say)
    await examination.check_aside("machine", machine_findings)
    await examination.check_aside("ports", lambda: port_findings(settings))
    await examination.check_aside("policies", lambda: policy_findings(settings, environment))
    await examination.check_aside("authority", lambda: authority_findings(settings, clock.now()))
    await examination.check_aside("spool", lambda: directory_findings("spool", settings.spool_directory))
    if await _journal_is_named(settings, examination):
        await examination.check_aside("secrets", lambda: secret_findings(settings, environment))
        await _examine_journal(settings, environment, examination)
    await _examine_limits(settings, examination)
    return examination.report


def unusable(error: SettingsError) -> Report:
    """The report where the options themselves cannot be used."""
    return Report((unfit("settings", str(error), "a start is refused", "Correct it; see `paywitness run --help`"),))


async def _journal_is_named(settings: Settings, examination: Examination) -> bool:
    try:
        _ = settings.journal_path
    except SettingsError as error:
        examination.add(unfit("journal", str(error), "a start is refused", "Correct --journal"))
        return False
    return True


async def _examine_journal(settings: Settings, environment: Mapping[str, str], examination: Examination) -> None:
    path = settings.journal_path
    if path is not None:
        await examination.check_aside("journal", lambda: sqlite_findings(path, settings, environment))
        return
    place = _place(settings.journal, "journal", examination)
    if place is not None:
        identity = identity_secret(settings, environment)
        await examine_redis(Purpose("journal", place, settings.lease_s, identity), examination)


async def _examine_limits(settings: Settings, examination: Examination) -> None:
    if settings.limits == "local":
        shared = not settings.journal.startswith("sqlite")
        note = "each sidecar counts for itself; --limits redis://... counts for the fleet" if shared else ""
        examination.add(ok("limits", "local", note))
        return
    scheme, separator, rest = settings.limits.partition("://")
    cluster = scheme.endswith(_CLUSTER)
    place = _place(f"{scheme.removesuffix(_CLUSTER)}{separator}{rest}", "limits", examination)
    if place is not None:
        await examine_redis(Purpose("limits", place, settings.lease_s, cluster=cluster), examination)


def _place(url: str, room: str, examination: Examination) -> Place | None:
    try:
        return place_of(url)
    except SettingsError as error:
        examination.add(_bad_url(url, room, error))
        return None


def _bad_url(url: str, room: str, error: SettingsError) -> Finding:
    # A password with a slash in it is taken for a port, and the error would quote it.
    cause = str(error.__cause__) if "@" not in url else "a user or password must be percent-encoded"
    return unfit(f"{room} URL", f"it cannot be used: {cause}", "a start is refused", f"Correct --{room}")
