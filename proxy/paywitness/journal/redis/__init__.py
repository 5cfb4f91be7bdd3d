"""The Redis journal: one primary with replicas and sentinels, shared by any number of sidecars. Time is Redis' own.

journal         RedisJournal: opens and checks; the writer and the reader in one, and steps of a single script
writer          look up, plan in Python, write over exactly what was read (compare and swap)
reader          lookups and lists, on a pipeline of its own
lookups         one script's answer, as the claim's lookups
rows            rows and script arguments
replication     replicas required before a send; detecting that Redis lost writes; plans to restore lost operations
webhook_events  stored webhook events
retention       tombstones and purging
checks          whether this Redis may hold the journal
scripts         loads the Lua scripts
lua/            one script a file; `lib.lua` lists the keys

The connection and its pipeline are in `paywitness/redis/`.
"""
