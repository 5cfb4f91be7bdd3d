"""The journal: the durable record of operations, attempts, evidence and decisions. Claim and record are each one
atomic step.

    base         the interface that every store implements, and the values that it takes and returns
    claim_plan   judges a claim: pure, over the store's lookups
    claim_answer   the plan of a claim, and the part of it that the claim's credential may see: pure
    fallback_plan  judges a fallback: pure
    transitions  the row after a record, a lease, an expedited due time or a cursor lease: pure
    ledger       payments as rows of the ledger: pure
    payouts      caps and approvals of payouts as rows of the ledger: pure
    tombstones   which ended operations become tombstones, and which rows the ledger keeps for them: pure
    encoding     operations and history entries as columns and JSON; rows of earlier versions stay readable
    fallback_encoding  the routes of a fallback in a history entry
    sqlite/      one file, one process
    redis/       one primary, shared by a fleet

A store reads, runs the pure rules, and writes. It decides nothing itself. The in-memory journal is in
tests/journal/memory.py.
"""
