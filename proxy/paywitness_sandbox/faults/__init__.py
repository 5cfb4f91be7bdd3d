"""Every fault, by phase, and which arrival gets which.

    before_commit    no money moves
    delays           the commit or the response is late
    after_commit     the money moved; no response, or an error
    wrong_responses  the money moved; the response is wrong, cut off, badly framed or not HTTP
    catalogue        all faults by name; scripts of faults (the Sandbox-Fault header)
    schedule         faults by chance, latency, outages, brownouts: plain values read from JSON
    selection        which fault an arrival gets; the only randomness of the sandbox

A fault acts around the bank, so the ledger always shows whether the effect happened. If the key's response is stored
already, the work is not done twice; the fault acts on the network all the same.
"""
