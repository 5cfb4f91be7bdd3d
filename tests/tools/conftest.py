"""An installation to be looked at: policies that load, secrets in the environment, a journal in a folder of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from paywitness.clock import SystemClock
from paywitness.option_defaults import ADMIN_TOKEN, ENCRYPTION_KEYS, IDENTITY_SECRET, Address, Settings
from paywitness.tools.doctor.checklist import run_checks
from paywitness.tools.doctor.runner import DoctorFinding, DoctorReport

TOP = Path(__file__).resolve().parents[2]
SECRETS = {
    IDENTITY_SECRET: "an identity that only this test has, 0123456789",
    ENCRYPTION_KEYS: "k1:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
    ADMIN_TOKEN: "a token that only this test has",
}
ANY_PORT = Address("127.0.0.1", 0)


class Installation:
    def __init__(self, home: Path) -> None:
        self.home = home
        self.policies = home / "policies"
        self.policies.mkdir()
        (self.policies / "acme.yaml").write_text((TOP / "policies" / "acme.yaml").read_text())
        self.environment = {**SECRETS, "ACME_WEBHOOK_SECRET": "known to acme and us"}
        self.settings = Settings(
            policies=self.policies,
            listen=ANY_PORT,
            admin=ANY_PORT,
            webhooks=ANY_PORT,
            journal=f"sqlite:///{home / 'journal.db'}",
            home=home,
        )
        self.said: list[str] = []

    async def examined(self, **changed: object) -> DoctorReport:
        settings = replace(self.settings, **changed)  # type: ignore[arg-type]
        return await run_checks(settings, self.environment, clock=SystemClock(), progress=self.said.append)


@pytest.fixture
def installation(tmp_path: Path) -> Installation:
    return Installation(tmp_path)


Find = Callable[[DoctorReport, str], DoctorFinding]


def found(report: DoctorReport, subject: str) -> DoctorFinding:
    """The one finding about the subject."""
    (finding,) = [finding for finding in report.findings if finding.subject == subject]
    return finding


def everything(report: DoctorReport) -> str:
    return f"{report.as_json()} " + "\n".join(finding.line for finding in report.findings)
