"""The Redis journal: one primary with replicas and sentinels, shared by any number of sidecars. Time is Redis' own.

journal.py         RedisJournal: opens, checks, and hands each call to the writer or the reader
writer.py          look up, plan in Python, write over exactly what was read (compare and swap)
reader.py          lookups and lists, on a pipeline of its own
lookups.py         what one script read, as the claim's lookups        rows.py   rows and script arguments
replication.py     replicas required before a send; whether Redis came back as another one; writing an operation again
                   that a failover lost
webhook_events.py  stored webhook events        retention.py  tombstones and purging
checks.py          whether this Redis may hold the journal        scripts.py  the Lua scripts; lua/ one a file

The connection and its pipeline are in paywitness/redis/.
"""
