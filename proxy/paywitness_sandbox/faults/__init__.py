"""Every fault, by phase, and which arrival gets which.

    definitions  the faults: before the commit, delays, after the commit, wrong responses
    registry     all faults by name; scripts of faults (the Sandbox-Fault header)
    selection    faults by chance, latency, outages, brownouts; which fault an arrival gets; the only randomness

A fault acts around the bank, so the ledger always shows whether the effect happened. If the key's response is already
stored, the work is not done twice, but the fault still acts on the network.
"""
