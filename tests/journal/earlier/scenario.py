"""The payments that a fixture holds: one of each kind, each under a key that says what it is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from tests.e2e.sidecar import LOST, Answer, ask, wait_until
from tests.journal.earlier.processes import WEBHOOK_SECRET, Proxy, Sandbox

ACTOR = {"actor": "on-call", "reason": "a journal for tests"}
Answers = dict[str, Answer]


def old(proxy: Proxy) -> Answers:
    """What retention has made a tombstone of by the time that the rest is made; with the alias of a second key."""
    return {"old": proxy.charge("old"), "old-joined": proxy.charge("old-joined", order="old")}


def ended(proxy: Proxy, sandbox: Sandbox) -> Answers:
    """What is over."""
    told: Answers = {"paid": proxy.charge("paid")}
    told["declined"] = proxy.charge("declined", source="tok_insufficient_funds")
    told["joined"] = proxy.charge("joined", order="paid")
    told["refused"] = proxy.charge("refused", order="paid", amount="1")
    told["fell-back"] = proxy.charge("fell-back", fault="rate_limited,-")
    told["mismatch"] = proxy.charge("paid", amount="2")
    sandbox.control("outage", {"mode": "refuse", "duration_s": 2})
    told["not-sent"] = proxy.charge("not-sent")
    told["sent-later"] = proxy.charge("sent-later")
    wait_until(lambda: _answers(sandbox), "the end of the outage")
    told["sent-later"] = proxy.charge("sent-later")
    with suppress(*LOST):  # this caller leaves, and the reply of 200 reaches nobody
        proxy.charge("undelivered", provider="spare", fault="slow(slow_s=1)", leave_s="0.3")
    wait_until(lambda: proxy.of_key("undelivered").get("state") == "succeeded", "the end of what nobody waits for")
    told["took-over"] = proxy.charge("took-over", provider="spare", order="undelivered")
    return told


def _answers(sandbox: Sandbox) -> bool:
    with suppress(*LOST):
        return ask(f"{sandbox.url}/_sandbox/").status_code == 200
    return False


def still_open(proxy: Proxy, sandbox: Sandbox) -> Answers:
    """What is not over, or is contradicted."""
    told: Answers = {"pending": proxy.charge("pending", source="tok_processing", webhook="never")}
    told["requires-action"] = proxy.charge("requires-action", source="tok_3ds", webhook="never")
    # An inquiry finds nothing before the money moves, and that is long after the sidecar is gone.
    lost = {"fault": "black_hole(heal_s=600, hang_s=0)", "webhook": "never", "timeout_ms": "500"}
    told["unknown"] = proxy.charge("unknown", **lost)
    told["unknown-without-key"] = proxy.charge("unknown-without-key", provider="plain", **lost)
    told["in-review"] = proxy.charge("in-review", **lost)
    assert proxy.admin(f"/v1/operations/{proxy.of_key('in-review')['id']}/park", ACTOR).status_code == 200
    told["contradicted"] = proxy.charge("contradicted", webhook="wrong_amount(by_minor=1)")
    wait_until(lambda: proxy.of_key("contradicted")["incident"] is not None, "the incident")
    return told


def send_webhooks(proxy: Proxy, sandbox: Sandbox) -> None:
    url = f"http://127.0.0.1:{proxy.webhooks_port}/paywitness/webhooks/acme"
    sandbox.control("webhooks", {"url": url, "secret": WEBHOOK_SECRET, "tries_max": 1}, "PUT")


def in_flight(proxy: Proxy, sandbox: Sandbox) -> None:
    """Calls that are under way when the sidecar is killed. Each of them has arrived at the provider.

    The webhook event that denies the payout arrives while its holder sends it: so the event waits."""
    hangs = {"fault": "hang_after_commit(hang_s=60)", "webhook": "never", "leave_s": "60"}
    _call(lambda: proxy.charge("killed", **hangs))
    _call(lambda: proxy.charge("killed-without-key", provider="plain", **hangs))
    _call(lambda: proxy.payout("denied-by-webhook", "dest_failed_closed", **hangs | {"webhook": "early"}))
    _call(lambda: proxy.charge("spooled", fault="slow(slow_s=4)", webhook="never", leave_s="60"))
    keys = ("killed", "killed-without-key", "denied-by-webhook", "spooled")
    wait_until(lambda: all(proxy.of_key(key).get("state") == "sending" for key in keys), "the sending of all")
    wait_until(lambda: sandbox.effects("killed") == 1, "the payment")
    wait_until(lambda: sandbox.effects("killed-without-key") == 1, "the payment")
    wait_until(lambda: _is_delivered(sandbox), "the webhook event of the payout")


def _is_delivered(sandbox: Sandbox) -> bool:
    events = sandbox.control("webhooks?type=payout.failed")["events"]
    return any(event["last_status_code"] == 200 for event in events)


def _call(call: Callable[[], Answer]) -> None:
    """Call, and do not wait for the answer."""

    def run() -> None:
        with suppress(*LOST):
            call()

    threading.Thread(target=run, daemon=True).start()
