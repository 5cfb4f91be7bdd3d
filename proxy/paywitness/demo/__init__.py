"""`paywitness demo`: the same payments through the same faults, by three contestants, scored by the providers' ledgers.

    processes  the sidecar as a process, free ports, a temporary folder; all of it is removed at the end
    clients    the payments and the fault of each request, from one seed; the applications that pay
    score      what callers were told against what the ledgers show; pure
    screen     what happened to one chosen payment, in words; live bars, progress lines, the final table
    main       the whole demo, in order

Nothing is simulated: the servers, the proxy, the faults and the numbers are real. It prints whatever a ledger shows.
"""
