"""Webhook events in the Redis journal, stored before a sidecar acknowledges them.

After one sidecar has taken a due event, no other sidecar gets it for a while, because two would relay it twice.
"""

from __future__ import annotations

import json
from dataclasses import replace

from paywitness.journal.base import StoredWebhookEvent, WebhookEventResult
from paywitness.journal.encoding import enum_or_safest
from paywitness.journal.redis import scripts
from paywitness.journal.redis.writer import RedisWriter
from paywitness.redis.connection import Argument


class RedisWebhookEvents:
    def __init__(self, writer: RedisWriter, consumer: str) -> None:
        self._writer = writer
        self._consumer = consumer

    async def store(self, webhook_event: StoredWebhookEvent) -> bool:
        event = json.dumps([webhook_event.provider, webhook_event.account, webhook_event.event_id])
        what = json.dumps(
            [webhook_event.provider, webhook_event.account, webhook_event.event_id, webhook_event.received_at]
        )
        received = repr(float(webhook_event.received_at))
        progress, *times = _progress_arguments(webhook_event)
        kept = await self._writer.run_without_time(
            scripts.WEBHOOK_EVENT_STORE, event, what, progress, webhook_event.sealed, received, *times
        )
        return bool(kept)

    async def due(self, limit: int) -> tuple[StoredWebhookEvent, ...]:
        found = await self._writer.run(scripts.WEBHOOK_EVENTS_DUE, str(limit), self._consumer, droppable=True)
        return tuple(_parse_event(*values) for values in found)

    async def update(self, webhook_event: StoredWebhookEvent) -> None:
        await self._writer.run_without_time(
            scripts.WEBHOOK_EVENT_UPDATE, f"{webhook_event.number:012d}", *_progress_arguments(webhook_event)
        )


def _progress_arguments(webhook_event: StoredWebhookEvent) -> tuple[Argument, ...]:
    """The event's progress, its two due times (to apply, to relay), and whether it is done."""
    times = (webhook_event.due_at, webhook_event.relay_due_at)
    progress = json.dumps([webhook_event.result.value, webhook_event.operation_id, webhook_event.attempts, *times])
    done = webhook_event.result is not WebhookEventResult.WAITING and webhook_event.relay_due_at is None
    return (progress, *("" if at is None else repr(float(at)) for at in times), "1" if done else "")


def _parse_event(number: bytes, what: bytes, progress: bytes, sealed: bytes) -> StoredWebhookEvent:
    provider, account, event_id, received_at, *_ = json.loads(what)
    result, operation_id, tries, due_at, relay_due_at, *_ = json.loads(progress)
    webhook_event = StoredWebhookEvent(int(number), provider, account, event_id, received_at, sealed)
    return replace(
        webhook_event,
        result=enum_or_safest(WebhookEventResult, result, WebhookEventResult.WAITING),
        operation_id=operation_id,
        attempts=tries,
        due_at=due_at,
        relay_due_at=relay_due_at,
    )
