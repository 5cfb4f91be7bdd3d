"""The life of one call. SENDING is durable before the first byte leaves; a reply leaves after its record is durable.

pipeline          claim, attempt, record, retry, reply: the branches of a call are here and nowhere below
context           the facts of one call beside its operation; the input of `core.decide` from both
gate              whether a call may go to its provider now: drain, circuit, admission; and whether it may go again
payout_check      the check by the policy's own address before a payout is claimed
attempts          send one attempt; conclude it, decide, record both; or spool the evidence
duplicates        single flight; replay, join or refuse a call whose key is known
refused_lookups   journal look-ups for calls that our limits refuse
waiters           callers that wait for an operation, and their deadlines
fallback          from an operation without effect to another route of the same API
passthrough       forwards a call that is no operation, once, unchanged
shadow            shadow mode: decides without acting
stored_messages   sealed requests, responses and credentials; the bytes of an attempt
"""
