"""The doctor, away from Redis: policies, secrets, the SQLite journal, the machine, and time."""

from __future__ import annotations

import asyncio
import os
import socket
import sqlite3
import threading
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from paywitness.clock import SystemClock
from paywitness.core.identity import check_value
from paywitness.journal.sqlite.journal import SqliteJournal
from paywitness.option_defaults import ENCRYPTION_KEYS, IDENTITY_SECRET, Address
from paywitness.tools.doctor import runner as check_runner
from paywitness.tools.doctor import sqlite_checks
from paywitness.tools.doctor.redis_checks import clock_finding
from paywitness.tools.doctor.runner import CheckRunner, DoctorFinding, Severity, ok, redacted
from paywitness.transparent.ca_files import LocalCaFiles
from tests.e2e.sidecar import Sidecar
from tests.tools.conftest import SECRETS, Installation, everything, found


async def make_journal(path: Path, secret: str) -> None:
    journal = await SqliteJournal.open(path, clock=SystemClock())
    await journal.check_identity(check_value(secret.encode()))
    await journal.close()


def vouch(installation: Installation, host: str, age_days: int = 0) -> LocalCaFiles:
    files = LocalCaFiles(installation.home)
    files.create_or_extend([host], datetime.now(UTC) - timedelta(days=age_days))
    return files


class TestAuthority:
    async def test_without_one_there_is_nothing_to_look_at(self, installation: Installation) -> None:
        finding = found(await installation.examined(), "authority")
        assert (finding.severity, finding.found[:5]) == (Severity.OK, "none:")

    async def test_one_that_covers_every_host_is_fit(self, installation: Installation) -> None:
        vouch(installation, "api.acme.test")
        report = await installation.examined()
        assert [finding.severity for finding in report.findings if "authority" in finding.subject] == [Severity.OK] * 3

    async def test_hosts_that_it_does_not_cover_are_named(self, installation: Installation) -> None:
        vouch(installation, "api.globex.test")
        finding = found(await installation.examined(), "authority")
        assert (finding.severity, finding.remedy) == (Severity.WARNING, "`paywitness ca init`")
        assert "api.acme.test" in finding.found

    @pytest.mark.parametrize(
        ("age_days", "fitness"), [(330, Severity.OK), (340, Severity.WARNING), (366, Severity.UNFIT)]
    )
    async def test_its_end_is_told_a_month_before(
        self, installation: Installation, age_days: int, fitness: Severity
    ) -> None:
        vouch(installation, "api.acme.test", age_days)
        assert found(await installation.examined(), "authority end").severity is fitness

    async def test_a_key_that_others_can_read_is_unfit(self, installation: Installation) -> None:
        vouch(installation, "api.acme.test").key.chmod(0o644)
        finding = found(await installation.examined(), "authority")
        assert finding.severity is Severity.UNFIT
        assert "chmod 600" in finding.found


class TestPolicies:
    async def test_a_good_installation_is_fit(self, installation: Installation) -> None:
        report = await installation.examined()
        assert report.fit, everything(report)
        assert found(report, "journal directory").severity is Severity.OK

    async def test_a_bad_policy_is_unfit_with_its_place(self, installation: Installation) -> None:
        (installation.policies / "bad.yaml").write_text("provider: bad\nupstream: http://h\noperatoins: {}\n")
        report = await installation.examined()
        assert not report.fit
        assert "bad.yaml:3:1" in everything(report)
        assert "did you mean 'operations'" in everything(report)

    async def test_a_directory_without_policies_is_unfit(self, installation: Installation, tmp_path: Path) -> None:
        report = await installation.examined(policies=tmp_path / "nowhere")
        assert found(report, "policies").severity is Severity.UNFIT

    async def test_a_missing_webhook_secret_is_named(self, installation: Installation) -> None:
        del installation.environment["ACME_WEBHOOK_SECRET"]
        finding = found(await installation.examined(), "policy acme")
        assert finding.severity is Severity.WARNING
        assert "ACME_WEBHOOK_SECRET not set" in finding.found
        assert found(await installation.examined(webhooks=None), "policy acme").severity is Severity.OK

    async def test_missing_credentials_are_named(self, installation: Installation) -> None:
        file = installation.policies / "acme.yaml"
        file.write_text(file.read_text() + "\ncredentials:\n  header: {Authorization: env:ACME_KEY}\n")
        assert "ACME_KEY not set" in everything(await installation.examined())
        installation.environment["ACME_KEY"] = "the key itself"
        told = everything(await installation.examined())
        assert "ACME_KEY" not in told
        assert "the key itself" not in told

    async def test_what_is_only_observed_is_told(self, installation: Installation) -> None:
        file = installation.policies / "acme.yaml"
        file.write_text(file.read_text() + "\nmode: observe\n")
        assert "mode: observe: its calls pass unchanged" in everything(await installation.examined())


class TestSecrets:
    @pytest.mark.parametrize(
        ("name", "value", "subject", "fitness"),
        [
            (IDENTITY_SECRET, "tiny-7319", "secrets identity", Severity.UNFIT),
            (IDENTITY_SECRET, "just long enough", "secrets identity", Severity.WARNING),
            (IDENTITY_SECRET, "a" * 64, "secrets identity", Severity.WARNING),
            (ENCRYPTION_KEYS, "k1:dG9vIHNob3J0", "secrets keys", Severity.UNFIT),
            (ENCRYPTION_KEYS, " , ,", "secrets keys", Severity.UNFIT),
            ("PAYWITNESS_ADMIN_TOKEN", "tiny-7319", "secrets admin token", Severity.WARNING),
        ],
    )
    async def test_bad_ones_are_told_and_never_shown(
        self, installation: Installation, name: str, value: str, subject: str, fitness: Severity
    ) -> None:
        installation.environment[name] = value
        report = await installation.examined()
        assert found(report, subject).severity is fitness
        assert value not in everything(report)

    async def test_no_secret_is_shown(self, installation: Installation) -> None:
        told = everything(await installation.examined())
        for secret in SECRETS.values():
            assert secret not in told

    async def test_a_fleet_needs_both_in_the_environment(self, installation: Installation) -> None:
        for name in (IDENTITY_SECRET, ENCRYPTION_KEYS):
            del installation.environment[name]
        report = await installation.examined(journal="redis://127.0.0.1:1")
        assert found(report, "secrets identity").severity is Severity.UNFIT
        assert found(report, "secrets keys").severity is Severity.UNFIT

    async def test_the_doctor_makes_none(self, installation: Installation) -> None:
        installation.environment.clear()
        before = sorted(installation.home.rglob("*"))
        report = await installation.examined()
        assert report.fit
        assert "the first start makes" in found(report, "secrets identity").found
        assert sorted(installation.home.rglob("*")) == before

    @pytest.mark.parametrize(("mode", "fitness"), [(0o644, Severity.UNFIT), (0o640, Severity.WARNING)])
    async def test_a_file_that_others_read_is_told(
        self, installation: Installation, mode: int, fitness: Severity
    ) -> None:
        del installation.environment[IDENTITY_SECRET]
        file = installation.home / "journal.db.identity"
        file.write_text(SECRETS[IDENTITY_SECRET])
        file.chmod(mode)
        findings = [one for one in (await installation.examined()).findings if one.subject == "secrets identity"]
        assert fitness in {one.severity for one in findings}
        assert f"chmod 600 {file}" in {one.remedy for one in findings}
        file.chmod(0o600)
        assert found(await installation.examined(), "secrets identity").severity is Severity.OK

    async def test_a_journal_that_lost_its_secret_is_unfit(self, installation: Installation) -> None:
        await make_journal(installation.home / "journal.db", SECRETS[IDENTITY_SECRET])
        del installation.environment[IDENTITY_SECRET]
        assert found(await installation.examined(), "secrets identity").severity is Severity.UNFIT


class TestSqlite:
    async def test_at_rest_its_identity_is_compared(self, installation: Installation) -> None:
        await make_journal(installation.home / "journal.db", SECRETS[IDENTITY_SECRET])
        before = {path.name: path.stat().st_mtime_ns for path in installation.home.iterdir()}
        assert "with this secret" in found(await installation.examined(), "journal identity").found
        assert {path.name: path.stat().st_mtime_ns for path in installation.home.iterdir()} == before
        installation.environment[IDENTITY_SECRET] = "the identity of quite another journal, 9876543210"
        assert found(await installation.examined(), "journal identity").severity is Severity.UNFIT

    async def test_a_running_sidecar_is_seen_and_not_disturbed(self, installation: Installation) -> None:
        path = installation.home / "journal.db"
        journal = await SqliteJournal.open(path, clock=SystemClock())
        await journal.check_identity(check_value(SECRETS[IDENTITY_SECRET].encode()))
        report = await installation.examined()
        assert await journal.healthy()
        await journal.close()
        assert f"process {os.getpid()} holds" in found(report, "journal held").found
        assert "with this secret" in found(report, "journal identity").found
        assert "no process" in found(await installation.examined(), "journal held").found

    @pytest.mark.parametrize("kind", ["not a directory", "takes no files"])
    async def test_a_directory_that_cannot_be_written_is_unfit(self, installation: Installation, kind: str) -> None:
        """Tests may run as root, whom no mode keeps out: so a file in its place, and a file system of the kernel."""
        if kind == "not a directory":
            (installation.home / "file").touch()
            journal = f"sqlite:///{installation.home}/file/journal.db"
        else:
            journal = "sqlite:////proc/journal.db"
        finding = found(await installation.examined(journal=journal), "journal directory")
        assert finding.severity is Severity.UNFIT
        assert "name another directory" in finding.remedy

    @pytest.mark.parametrize("content", [b"no database at all, but long enough to be one" * 40, None])
    async def test_a_file_that_is_no_journal_is_unfit(self, installation: Installation, content: bytes | None) -> None:
        path = installation.home / "journal.db"
        if content is not None:
            path.write_bytes(content)
        else:
            connection = sqlite3.connect(path)
            connection.execute("CREATE TABLE meta (name, value)")
            connection.close()
        assert found(await installation.examined(), "journal identity").severity is Severity.UNFIT

    @pytest.mark.parametrize(
        ("kind", "fitness"),
        [
            ("ext4", Severity.OK),
            ("tmpfs", Severity.WARNING),
            ("nfs4", Severity.WARNING),
            ("fuse.sshfs", Severity.WARNING),
            ("overlay", Severity.WARNING),
        ],
    )
    async def test_what_it_lies_on(
        self, installation: Installation, monkeypatch: pytest.MonkeyPatch, kind: str, fitness: Severity
    ) -> None:
        monkeypatch.setattr(sqlite_checks, "_file_system", lambda _: kind)
        assert found(await installation.examined(), "journal file system").severity is fitness

    def test_the_deepest_mount_decides(self) -> None:
        assert sqlite_checks._file_system(Path("/proc/self")) == "proc"

    @pytest.mark.parametrize(("free_mib", "fitness"), [(10, Severity.UNFIT), (500, Severity.WARNING)])
    async def test_a_disk_that_fills_up(
        self, installation: Installation, monkeypatch: pytest.MonkeyPatch, free_mib: int, fitness: Severity
    ) -> None:
        usage = type("Usage", (), {"free": free_mib << 20})
        monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
        assert found(await installation.examined(), "journal disk").severity is fitness


class TestMachine:
    async def test_a_port_of_somebody_else_is_unfit(self, installation: Installation) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            report = await installation.examined(listen=Address("127.0.0.1", server.getsockname()[1]))
        assert "not by a sidecar" in found(report, "port listen").found

    async def test_two_listeners_on_one_port_are_unfit(self, installation: Installation) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = Address("127.0.0.1", server.getsockname()[1])
        assert (
            found(await installation.examined(listen=address, admin=address), "port admin").severity is Severity.UNFIT
        )

    async def test_an_address_of_another_machine_is_unfit(self, installation: Installation) -> None:
        report = await installation.examined(webhooks=Address("192.0.2.1", 8703))
        assert found(report, "port webhooks").severity is Severity.UNFIT

    async def test_a_running_sidecar_is_recognised_at_its_ports(self, installation: Installation) -> None:
        sidecar = Sidecar(installation.home / "running", "http://127.0.0.1:1").start()
        try:
            report = await installation.examined(
                listen=Address("127.0.0.1", sidecar.port),
                admin=Address("127.0.0.1", sidecar.admin_port),
                webhooks=Address("127.0.0.1", sidecar.webhooks_port),
            )
        finally:
            sidecar.stop()
        for name in ("listen", "admin", "webhooks"):
            assert "a sidecar runs" in found(report, f"port {name}").found

    async def test_listening_to_the_network_is_a_warning(self, installation: Installation) -> None:
        report = await installation.examined(listen=Address("0.0.0.0", 0), webhooks=Address("0.0.0.0", 0))
        listen = [one.severity for one in report.findings if one.subject == "port listen"]
        assert listen == [Severity.OK, Severity.WARNING]
        assert found(report, "port webhooks").severity is Severity.OK

    async def test_few_open_files_are_a_warning(
        self, installation: Installation, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("resource.getrlimit", lambda _: (1024, 4096))
        assert found(await installation.examined(), "machine files").severity is Severity.WARNING


class TestTime:
    async def test_what_hangs_is_unfit_after_its_time_and_told_before(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(check_runner, "CHECK_S", 0.05)
        monkeypatch.setattr(check_runner, "_SLOW_S", 0.01)
        said: list[str] = []
        over = threading.Event()

        def hangs() -> Iterable[DoctorFinding]:
            over.wait(30)
            return []

        looking = CheckRunner(SystemClock(), said.append)
        assert not await looking.check_in_thread("a disk", hangs)
        over.set()
        assert found(looking.report, "a disk").severity is Severity.UNFIT
        assert said == ["still checking: a disk ..."]

    async def test_the_whole_is_bounded_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(check_runner, "WHOLE_S", 0.0)
        looking = CheckRunner(SystemClock(), lambda _: None)
        assert not await looking.check_in_thread("anything", lambda: [ok("anything", "fine")])
        assert "not checked" in found(looking.report, "anything").found

    async def test_a_check_that_fails_is_unfit(self) -> None:
        def fails() -> Iterable[DoctorFinding]:
            raise OSError("the disk is on fire")

        looking = CheckRunner(SystemClock(), lambda _: None)
        assert not await looking.check_in_thread("a disk", fails)
        assert "on fire" in found(looking.report, "a disk").found
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("ahead_s", "fitness"),
    [(0.2, Severity.OK), (-0.9, Severity.OK), (1.1, Severity.WARNING), (-15.1, Severity.UNFIT), (16.0, Severity.UNFIT)],
)
def test_how_far_clocks_may_differ(ahead_s: float, fitness: Severity) -> None:
    assert clock_finding(ahead_s, 30.0).severity is fitness


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("--limits 'redis://ada:p@ss@h:1/0'", "--limits 'redis://...@h:1/0'"),
        ("redis://h?sentinel_password=hidden&x=1", "redis://h?sentinel_password=...&x=1"),
        ("two\nlines", "two lines"),
        ("redis://h:6379", "redis://h:6379"),
    ],
)
def test_a_text_is_scrubbed(text: str, shown: str) -> None:
    assert redacted(text) == shown
