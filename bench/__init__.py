"""The bench: what a clean call costs through Paywitness, side by side with other proxies. `python -m bench`.

    provider      a provider that answers every charge at once
    passthrough   the baseline: what an engineer would write who only wants the bytes to pass
    load          callers, each with one connection, each sending its next call as soon as it has an answer
    processes     starting, awaiting and ending all of these as real processes
    proxies       plain nginx, HAProxy, Envoy and mitmproxy (`configurations/`)
    capture       the two scripts of a clean call, with the arguments that Paywitness really gave Redis
    nginx         the same two scripts from nginx + Lua (`two_scripts.lua`): what they cost in C
    rounds        which route is driven when; the routes take turns, so that a noisy machine is noisy to all of them
    figures       rounds to medians and ratios; pure

The other parts of a run, each with a function that measures and one that tells:

    engine_alone  a clean call without sockets and disks: what the engine itself costs
    telemetry     what metrics and logs are of it
    secure        TLS to the provider
    sidecars      two on a shared port
    crowd         a thousand connections
    waiting       memory of calls that wait for their provider, who keeps them waiting (`holding`)
    startup       from the start of a process until it takes calls
    memory        what an ended operation takes in Redis
    scrape        a million operations in the journal
    classifying   what reading one answer costs
    hostile       what a paying caller feels of hostile bodies
    intercepted   what it costs to look into the callers' TLS

    machine       what the figures stand on: processor, versions, file system, what its fsync costs
    report        figures to tables or to JSON; pure
    aims          what it aims at, and what was reached; pure
    page          the same in docs/benchmarks.md, with pictures; pure

How far to trust it: docs/benchmarks.md.
"""
