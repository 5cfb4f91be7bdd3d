"""The bench: what a clean call costs through Paywitness, beside a bare aiohttp pass-through. `python -m bench`.

    provider      a provider that answers every charge at once
    passthrough   the baseline: what an engineer would write who only wants the bytes to pass
    load          callers, each with one connection, each sending its next call as soon as it has an answer
    processes     starting, awaiting and ending all of these as real processes
    capture       the two scripts of a clean call, with the arguments that Paywitness really gave Redis
    nginx         the same two scripts from nginx + Lua (`two_scripts.lua`): what they cost in C
    rounds        which route is driven when; the routes take turns, so that a noisy machine is noisy to all of them
    engine_alone  a clean call without sockets and disks: what the engine itself costs
    figures       rounds to medians and ratios; pure
    memory        what an ended operation takes in Redis
    machine       what the figures stand on: processor, versions, file system, what its fsync costs
    report        figures to a table or to JSON; pure

How far to trust it: docs/benchmarks.md.
"""
