"""The journal: the durable record of operations, attempts, evidence and decisions. Claim and record are each one
atomic step.

    base         the interface that every store implements, and the values that it takes and returns
    claim_plan   judges a claim: pure, over the store's lookups
    claim_answer   what a claim comes to, and what its credential may be told of that: pure
    fallback_plan  what a fallback comes to: pure
    transitions  what a record, a lease, an expedited due time or a cursor lease makes of a row: pure
    ledger       payments as rows of the ledger: pure
    payouts      caps and approvals of payouts as rows of the ledger: pure
    tombstones   which ended operations become tombstones, and what the ledger keeps of them: pure
    encoding     operations and history entries as columns and JSON; must read what earlier versions wrote
    fallback_encoding  the part of a history entry that tells which routes there were
    sqlite/      one file, one process
    redis/       one primary, shared by a fleet

A store reads, runs the pure rules, and writes. It decides nothing itself. The in-memory journal is in
tests/journal/memory.py.
"""
