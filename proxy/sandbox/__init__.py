"""The fault-injecting provider: a bank that keeps a ledger, and a wire that can be made to fail around it.

    bytes -> wire (Connection) -> Request -> choosing (which fault?) -> Fault.play(Exchange)
        receive   the whole request, and claim its key
        execute   provider -> dialect -> bank -> ledger
        answer    or something worse
    bank -> changes -> webhooks (announcer, courier) -> whoever wants to be told

The words: an **arrival** is one request that reached us; an **effect** is one line of the ledger; a **fault** is what
the wire does around the bank, so that the ledger always tells whether the money moved; the **contract** is what the
provider promises about a repeated idempotency key; an **event** is what the provider tells on its own.

Nothing of the proxy is imported here: the sandbox is the referee, and a referee does not share code with a player.
"""
