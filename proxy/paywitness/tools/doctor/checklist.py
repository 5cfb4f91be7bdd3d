"""Whether this installation is fit to hold money, and what to change: all checks in their order, within 15 s."""

from __future__ import annotations

from collections.abc import Mapping

from paywitness.clock import Clock
from paywitness.core.errors import SettingsError
from paywitness.option_defaults import Settings
from paywitness.redis.url import RedisTarget, parse_limits_url, parse_redis_url
from paywitness.tools.doctor.machine_checks import machine_findings, port_findings
from paywitness.tools.doctor.policy_checks import policy_findings
from paywitness.tools.doctor.redis_checks import RedisPurpose, check_redis
from paywitness.tools.doctor.runner import CheckRunner, DoctorFinding, DoctorReport, ProgressWriter, ok, unfit
from paywitness.tools.doctor.secret_checks import identity_secret, local_ca_findings, secret_findings
from paywitness.tools.doctor.sqlite_checks import directory_findings, sqlite_findings


async def run_checks(
    settings: Settings, environment: Mapping[str, str], *, clock: Clock, progress: ProgressWriter
) -> DoctorReport:
    """Run one check after the other. `progress` gets a line about each slow one."""
    runner = CheckRunner(clock, progress)
    await runner.check_in_thread("machine", machine_findings)
    await runner.check_in_thread("ports", lambda: port_findings(settings))
    await runner.check_in_thread("policies", lambda: policy_findings(settings, environment))
    await runner.check_in_thread("authority", lambda: local_ca_findings(settings, clock.now()))
    await runner.check_in_thread("spool", lambda: directory_findings("spool", settings.spool_directory))
    if await _journal_is_valid(settings, runner):
        await runner.check_in_thread("secrets", lambda: secret_findings(settings, environment))
        await _check_journal(settings, environment, runner)
    await _check_limits(settings, runner)
    return runner.report


def invalid_settings_report(error: SettingsError) -> DoctorReport:
    """The report if the options themselves are not valid."""
    return DoctorReport(
        (unfit("settings", str(error), "a start is refused", "Correct it; see `paywitness run --help`"),)
    )


async def _journal_is_valid(settings: Settings, runner: CheckRunner) -> bool:
    try:
        _ = settings.journal_path
    except SettingsError as error:
        runner.add(unfit("journal", str(error), "a start is refused", "Correct --journal"))
        return False
    return True


async def _check_journal(settings: Settings, environment: Mapping[str, str], runner: CheckRunner) -> None:
    path = settings.journal_path
    if path is not None:
        await runner.check_in_thread("journal", lambda: sqlite_findings(path, settings, environment))
        return
    address = _redis_address(settings.journal, "journal", runner)
    if address is not None:
        identity = identity_secret(settings, environment)
        await check_redis(RedisPurpose("journal", address, settings.lease_s, identity), runner)


async def _check_limits(settings: Settings, runner: CheckRunner) -> None:
    if settings.limits == "local":
        shared = not settings.journal.startswith("sqlite")
        note = "each sidecar counts for itself; --limits redis://... counts for the fleet" if shared else ""
        runner.add(ok("limits", "local", note))
        return
    address = _redis_address(settings.limits, "limits", runner)
    if address is not None:
        await check_redis(RedisPurpose("limits", address, settings.lease_s), runner)


def _redis_address(url: str, component: str, runner: CheckRunner) -> RedisTarget | None:
    try:
        return parse_limits_url(url) if component == "limits" else parse_redis_url(url)
    except SettingsError as error:
        runner.add(_bad_url(url, component, error))
        return None


def _bad_url(url: str, component: str, error: SettingsError) -> DoctorFinding:
    # A password with a slash in it is parsed as a port, and the error would quote it.
    cause = str(error.__cause__ or error) if "@" not in url else "a user or password must be percent-encoded"
    return unfit(f"{component} URL", f"it cannot be used: {cause}", "a start is refused", f"Correct --{component}")
