"""Lua scripts: their texts do not change by accident."""

from __future__ import annotations

import hashlib
from pathlib import Path

from paywitness.journal.redis import scripts
from paywitness.limits.redis_budgets import BUDGET
from paywitness.limits.redis_circuits import CIRCUIT
from paywitness.redis.pipeline import LuaScript

# Of the code of each script, without the lines that are comments. Another code means that sidecars of two versions run
# two scripts on the same keys: change a line here only together with the script, and if both can work on the same data.
HASHES = {
    "claim": "a737f830817c28b51e29f9a67fd137604877a934",
    "lookup": "35f5b3b7a80ba05d48584101138b57c21d47df8a",
    "record": "449ba72979faa88d8d2314627a4c6f6ab110e239",
    "commit": "8aa3440d6a9c8a128f7d2ee75912d4da9d1fc3f8",
    "write_many": "92d25bba91c32ec4924652ba4178824d8b60786c",
    "due": "66c788c634b5164b27f32bb5799a4fac907f1bee",
    "expired_leases": "876189800f39304cfd1f01697199173b248aafdc",
    "renew": "7e8774764049c45ebbb3361287658cc98e08f2e2",
    "rows": "b63c0da04a4df7463be02cd68fe7f7ae315b9fdb",
    "history": "12c1d575954df34e6c7b3ae345658d94abcddb49",
    "announcements": "328fa58ffeb32ced3da4135546573f7494377619",
    "scan_expired": "cb3ec2f38252b7badd9ea6421659bcc9370b333e",
    "expired_rows": "c2b05b8b1e6551c1d14125f6d6a9ed69d3523f6f",
    "tombstone": "2c88ff1b393f4d202aa6030373e125ec733fc4db",
    "purge": "d6d4d21a6d14802f1a8daf699e65b84eae854061",
    "webhook_event_store": "af4efc85216945bbcc116a583e317e50b538b0ca",
    "webhook_event_update": "d9a1c2dff9f9a5af1df288fe525712a18bcc8017",
    "webhook_events_due": "433585c2096152a78fbab4a137b165c0b10f9ac2",
    "expedite": "cf9da50e3dd169fba74bb1590253d97833723602",
    "cursor_take": "fd80cc4c22af957ad24e7c6979e99a8087c3297a",
    "cursor_move": "5e996d58d7e063bb8ffd43eb37336ec84d0be70f",
    "ledger_rows": "775453090e7e43172f57acfa062ff02f67ac29dd",
    "ledger_store": "c803b8af585a863798770140ba66f1d3ae76ce1c",
    "ledger_due": "f464d9724fd264d6d6ee1be31ae5f4cf1f858d8f",
    "ledger_due_count": "8c3fdb865726f208c11a70e3806f03fe03f0848f",
    "ledger_old": "5b7bc31f1134def42d4530b311c1b7c6657e5333",
    "ledger_forget": "48a4048f7d1df5bdcc61f803d217cddc652025bc",
    "store_revision": "30b32157ad91e701fe2853098cef5e1f5e1b4d34",
    "latest_revision": "0f0ca8113e7a7ed4780c3e0cf70c9459f03dd960",
    "newest_credential": "92a49e453510024eca0aa46b948fb659b25bddf5",
    "time": "df735328c0a83cd4dd2cfcba609c4c24253b0676",
    "replication_seen": "7d1d324118e3dcd4a910993c94a6b4e9460296ac",
    "budget": "3cafca67dfc6045b5ad6481bdfd147cade07947d",
    "circuit": "f6a60ac2bb6881c4ff288e73dbb187a7a0d20f24",
}


def hash_of_code(text: str) -> str:
    code = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("--")]
    return hashlib.sha1("\n".join(code).encode(), usedforsecurity=False).hexdigest()


def test_every_script_does_what_running_sidecars_know() -> None:
    assert {script.name: hash_of_code(script.text) for script in (*scripts.ALL, BUDGET, CIRCUIT)} == HASHES


def test_a_script_is_its_head_then_what_it_includes_then_itself(tmp_path: Path) -> None:
    for name in ("part", "other", "whole"):
        (tmp_path / f"{name}.lua").write_text(f"-- {name}\n")
    script = LuaScript.load(tmp_path, "whole", head="local N = 1", includes=("part", "other"))
    assert script.text == "local N = 1\n-- part\n\n-- other\n\n-- whole\n"
    assert script == LuaScript.of("whole", script.text)
    assert LuaScript.load(tmp_path, "whole").text == "-- whole\n"
