"""The fixtures: journals that earlier releases wrote, and what each release itself said of its own."""

from __future__ import annotations

import json
import tarfile
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
# Those whose holder was killed, and those that are due: whatever release opens the journal goes on with them.
GOES_ON = frozenset(
    {
        "unknown",
        "unknown-without-key",
        "in-review",
        "pending",
        "requires-action",
        "killed",
        "killed-without-key",
        "spooled",
        "denied-by-webhook",
    }
)


@dataclass(frozen=True)
class Fixture:
    archive: Path

    @property
    def name(self) -> str:
        return f"{self.archive.parent.name}-{self.journal}"

    @property
    def journal(self) -> str:
        return self.archive.name.partition(".")[0]

    def unpack(self, folder: Path) -> Earlier:
        """The journal's files, as the earlier sidecar left them."""
        with tarfile.open(self.archive) as tar:
            if hasattr(tarfile, "data_filter"):  # not yet in Debian's Python 3.11.2
                tar.extraction_filter = tarfile.data_filter
            tar.extractall(folder)
        return Earlier(folder, json.loads((folder / "expected.json").read_text()))


@dataclass(frozen=True)
class Earlier:
    """What the earlier sidecar left, and what it said: its answers, its operations, its feed of outcomes."""

    folder: Path
    expected: dict

    @property
    def operations(self) -> list[dict]:
        """With their timelines, newest first, as its admin API gave them just before the sidecar was killed."""
        return list(self.expected["operations"])

    @property
    def leases_over_at(self) -> float:
        """When the last lease of the earlier sidecar was over."""
        held = (operation["held_until"] for operation in self.operations if operation["held_until"] is not None)
        return max(datetime.fromisoformat(until).timestamp() for until in held)

    def of_key(self, key: str) -> dict:
        """The newest operation of a key."""
        return next(operation for operation in self.operations if operation["client_key"] == key)

    def answer(self, key: str) -> dict:
        return dict(self.expected["answers"][key])

    @property
    def outcomes(self) -> list[dict]:
        return list(self.expected["outcomes"]["outcomes"])

    @property
    def undelivered_events(self) -> list[str]:
        """The ids of the events that the receiver had not accepted, in their order."""
        accepted = {event["id"] for event in self.expected["events_accepted"]}
        return [row["event"]["id"] for row in self.outcomes if row["event"]["id"] not in accepted]


def advised_since(operation: dict) -> dict:
    """What later releases advise otherwise: after a soft decline another method helps, not time."""
    return {"advice": "use_another_method"} if operation["reading"] == "issuer_soft_decline" else {}


def as_described_then(entry: dict) -> dict:
    """An entry of a timeline without what is shown since. What was not kept then is shown as not known."""
    shown_then = {name: value for name, value in entry.items() if name not in {"summary", "lease_only", "fallback"}}
    assert entry["fallback"] is None
    for part in ("attempt", "finding"):
        if (evidence := entry[part]) is not None:
            assert evidence["shown_amount"] is evidence.get("request_id") is None
            since = {"shown_amount", "request_id"}
            shown_then[part] = {name: value for name, value in evidence.items() if name not in since}
    return shown_then


def without_proposals(value: Any) -> Any:
    """What a person is advised is worded anew by each release. What stays is whether there is a proposal."""
    if isinstance(value, list):
        return [without_proposals(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {name: bool(each) if name == "proposal" else without_proposals(each) for name, each in value.items()}


def refused_since(answer: dict, title: str) -> dict:
    """A refusal that names a paid operation of another payment, as later releases tell it."""
    holder = {"operation": answer["operation"], "outcome": answer["outcome"]}
    return answer | {"title": title, "outcome": "none", "holder": holder}


def fixtures(journal: str = "*") -> list[Fixture]:
    return [Fixture(archive) for archive in sorted(HERE.glob(f"*/{journal}.tar.gz"))]
