"""`paywitness demo`: the same payments through the same faults, by three contestants, scored by the providers' ledgers.

    faults      the payments, and the fault of each of their requests, from one seed
    processes   the sidecar as a process, free ports, a temporary folder; all of it is removed at the end
    clients     the applications that pay, each with its own use of keys
    score       what callers were told against what the ledgers show; pure
    narrative   what happened to one chosen payment, in words; pure
    screen      live bars, progress lines, the final table
    main        the whole demo, in order

Nothing is simulated: the servers, the proxy, the faults and the numbers are real. It prints whatever a ledger shows.
"""
