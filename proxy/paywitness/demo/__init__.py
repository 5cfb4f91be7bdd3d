"""`paywitness demo`: three contestants make the same payments through the same faults. The providers' ledgers score
them.

    processes  the sidecar as a process, free ports, a temporary folder; all of it is removed at the end
    clients    the payments and the fault of each request, from one seed; the applications that pay
    score      compares the callers' results with the ledgers; pure
    screen     the story of one chosen payment; live bars, progress lines, the final table
    main       the whole demo, in order

Nothing is simulated: the servers, the sidecar, the faults and the numbers are real. The result is always the ledgers'.
"""
