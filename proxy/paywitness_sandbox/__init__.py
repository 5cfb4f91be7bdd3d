"""The fault-injecting provider: a bank that keeps a ledger, and a network around it that can be made to fail.

    bytes -> connection -> Request -> faults.selection (which fault?) -> Fault.apply(exchange)
        receive   the whole request, and claim its idempotency key
        execute   provider -> dialect -> bank -> ledger
        respond   or something worse
    bank -> changes -> webhooks (publisher, sender) -> the webhook endpoint

An **arrival** is one request that reached the sandbox. An **effect** is one entry of the ledger. A **fault** acts on
the network around the bank, so the ledger always shows whether the money moved. The **contract** is the provider's
promise for a repeated idempotency key. An **event** is a webhook event of the provider.

The sandbox imports nothing of paywitness. Tests judge paywitness by the sandbox, so the two must not share code.

    server      Sandbox: start, stop, reset; the life of one arrival
    listener    the listening socket: open, closed during an outage, open again at the same address
    connection  one connection: bytes into requests, bytes out, FIN and RST
    messages    one request, its body as a tree, its identity; one response, and the errors that all dialects share
    exchange    one request and its response, as the steps of which faults are made; Fault itself
    provider    API key, idempotency key, route; runs the work once
    contract    what a repeated idempotency key means, and the keys in use
    control     the routes under /_sandbox/
    options     SandboxOptions
    parameters  the syntax name(parameter=value), for faults and webhook modes
    clock       the only place that reads the time of day
    bank/       charges, captures, refunds, disputes, payouts, the ledger: no HTTP
    dialects/   the HTTP APIs in front of the bank: acme, stripe
    faults/     every fault by phase, the schedule of faults, which arrival gets which
    webhooks/   webhook events: their content, signing, sending, and the faults of sending
"""
