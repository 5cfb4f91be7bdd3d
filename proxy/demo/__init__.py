"""The story that `paywitness demo` tells: one bad day at a provider, lived through several ways, judged by its ledgers.

    weather   the payments and what goes wrong with each request of theirs, from one seed
    stage     the providers, the sidecar as a process of its own, and the folder they leave nothing of
    lanes     the applications that pay, each with its own habit of keys
    verdict   what callers were told against what the ledgers show; pure
    telling   what became of one chosen payment, in words; pure
    show      the screen
    story     all of it, in order

Nothing is played: the servers, the proxy, the faults and the numbers are what they are. Whatever a ledger shows is
printed.
"""
