"""Lua scripts: their texts do not change by accident."""

from __future__ import annotations

from pathlib import Path

from paywitness.journal.redis import scripts
from paywitness.limits.redis_budgets import BUDGET
from paywitness.limits.redis_circuits import CIRCUIT
from paywitness.redis.scripts import LuaScript

# A script is run by the hash of its text. Another text means that sidecars of two versions run two scripts on the same
# keys: change a line here only together with the script, and if both can work on the same data.
HASHES = {
    "claim": "ae8ae6708acc1b1478540e2d5e56ea12cafd37cd",
    "lookup": "4010df0107a0a89cc29700d0c6d4f786aaf508e3",
    "record": "11d8c4aab418a0467b0d63f32c615c5b94686132",
    "commit": "84934586071f1fe20ee26fcd38ecdb921c5cc0ed",
    "write_many": "0cd24afa00d38aa2aae01ee8d9ff834ca8a16b65",
    "due": "383bf95069930a072a12394518b1aad13c39146e",
    "expired_leases": "3ad0cca3476c865e798ba227e88f9d25f295f7e5",
    "renew": "a78ad388b4835e0100fad6f7f6df5ff835db39c8",
    "rows": "a7d253d3462e75a373f8ae38b3fa638f0291e290",
    "history": "0ddd4e6967eab57408536e347934c589b1a2bf29",
    "announcements": "687a13e8482fa50688eb4d59822df525db9387c3",
    "scan_expired": "e2620af55edd05ac8d3d02cbbc2a8c60e9036fd2",
    "expired_rows": "38c4bef7f1a0f2db77aa498fcabfdb5a05639115",
    "tombstone": "8c61fa233a1ff10fd799d0afb073a71ac476d9bf",
    "purge": "cfa0e9d875f2682929b92ef2ac7bc890a473fa51",
    "webhook_event_store": "044c267666cc76c3afd0cbecc083dd44a69a04d8",
    "webhook_event_update": "0417b62ef37cd47589eef7b802d31dc7e03492b1",
    "webhook_events_due": "17928cd21d000fd625ac7f08dbabe4608839645a",
    "expedite": "b6c4255f1c20bfd5a296c21ec54685335d75afcd",
    "cursor_take": "aed09bd41f757afa57663cf2a170b02bec0d5f7d",
    "cursor_move": "95a1d66de73f77ac6f88c3809aa68372aa9e9a61",
    "store_revision": "641d54ebe429c71cf97d4631c5b288a72373ef02",
    "latest_revision": "8deef7f51a8c825c256fcc325a0f5fb78b87f05a",
    "newest_credential": "6a5b57d5e738fa51b88a315940f40dfe6e082d46",
    "time": "35314de6f2b763c8de02cdf46719e43b65edd0ae",
    "replication_seen": "43f9ea8e555a1bd16613d0f3d17fff373c62837e",
    "budget": "1506647cacc1bec8c5d4362252ec3de4782fc50d",
    "circuit": "42d9a982990a4ab4b14827c3f90d24b05b22357a",
}


def test_every_script_has_the_text_that_running_sidecars_know() -> None:
    assert {script.name: script.sha for script in (*scripts.ALL, BUDGET, CIRCUIT)} == HASHES


def test_a_script_is_its_head_then_what_it_includes_then_itself(tmp_path: Path) -> None:
    for name in ("part", "other", "whole"):
        (tmp_path / f"{name}.lua").write_text(f"-- {name}\n")
    script = LuaScript.load(tmp_path, "whole", head="local N = 1", includes=("part", "other"))
    assert script.text == "local N = 1\n-- part\n\n-- other\n\n-- whole\n"
    assert script == LuaScript.of("whole", script.text)
    assert LuaScript.load(tmp_path, "whole").text == "-- whole\n"
