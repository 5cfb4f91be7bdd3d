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
    "claim": "61edbbf870ea22608642d656ca6bdc3fb002a64d",
    "lookup": "f6da0e8fe6f42f064c49b1bee038cda05c8b2c7d",
    "record": "e82f2cab871b53ee59f2e32d23096d1ba052fa8f",
    "commit": "e6ee5642f2350dce5857aa3836aa8bda626e8275",
    "write_many": "4bd8f3db32a90fff893f123cac64b44e7f3fa186",
    "due": "3e4c29148ca2beb85802f1b3708917ede1b50c04",
    "expired_leases": "976f94d646518166ef829a032cbaa139d7ee24f8",
    "renew": "8d2357e6e4383a08995f4cc3826853cc2914134a",
    "rows": "94b02b4267fafe00c9f194a140efabc49c022437",
    "history": "3eb114d1858783ad41bd85731b40979e89c175a9",
    "announcements": "e47cc2700d556bfd1abcdd36e54079cd17cf36bf",
    "scan_expired": "641270d188aa23728cd7b4589b59b224af4be9ae",
    "expired_rows": "790c4ef7bdafdd4d54d5bdd2b2e691ada91f20da",
    "tombstone": "17d0ac0e592103dee7b495154baa0bc35160afbe",
    "purge": "d98fa32b1ecc4de15bd9222bac02a97157207c6e",
    "webhook_event_store": "b78c65cde48da31189c3b9c1cd6996e807a5cdd9",
    "webhook_event_update": "b1df2408559f5ce0deab2ba5ee14e36b8d713533",
    "webhook_events_due": "d302649c83abeddcef1c8164d511f3214124e621",
    "expedite": "69f7ff2107b89168102f9d39c315a74646e30e71",
    "cursor_take": "be98bfff0f7818e00e2c1670eef358a5cae85f7c",
    "cursor_move": "33bb1702b1875e792b7556747745dd0ef9dc81aa",
    "ledger_rows": "c17216f870d3d3027f472eb573dd283f3c5da226",
    "ledger_store": "43fa41812f98411156bc25101f731ef5474700a2",
    "ledger_due": "c7a1f0de30f8a0ebd40bf762f35d4b98187a25c6",
    "ledger_due_count": "1209de23e5cb8fb69d776961e68c0cb9f64f2a8d",
    "ledger_old": "6202764cd66fec4d58848a2d9d8ac6c1701bdf22",
    "ledger_forget": "73de5b8a27eec4824d67ce277d9486717db382a2",
    "store_revision": "0946247b32d2a0795d7df955185d3b25ec77331d",
    "latest_revision": "22031b19453fb1fa1a6394d0bf7a8a7965c3e213",
    "newest_credentials": "7047849b42f0b810b83c1479ac5535d7938569fd",
    "time": "fa71ffdebcafa84dfc533cd8f44fbb49b6a4bcee",
    "replication_seen": "efa3887c59bab6c7265cccb5e417fe92379c491c",
    "level": "7bfa065d3701a5515ccaf8f69a0f012b704205cf",
    "clock": "3d98ca9c0f5d7ce1d519b5ee023f951381132f2e",
    "budget": "583263495916e87738656b425c6a6d513a577f59",
    "circuit": "e2aa3bc179e12d40a06d67c28ee81ca041c42be9",
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
