"""Webhooks: a provider's events, verified, stored, acknowledged, and only then applied. Never the other way round.

    inbox         receives a webhook, stores its events once by their ids, applies and relays them in the background
    verification  the signature scheme of a policy, the sender's certificate, the payload; the stored form of a webhook
    matcher       finds the operation that an event is about; within its account, never by a guess
    applier       applies one stored event to its operation; unsigned webhooks are a reason to inquire
    relay         posts the provider's bytes to the service's own address, at least once

The journal is the queue: a crash at any point leaves the event where the next poll finds it.
"""
