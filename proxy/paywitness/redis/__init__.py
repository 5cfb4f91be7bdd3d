"""What every user of Redis shares.

    url         RedisTarget: what a redis:// or redis+sentinel:// URL names
    connection  a connection to the primary, also through sentinels; reads responses by the packet; what errors mean

Nothing here retries: a script whose reply was lost may have run, so the caller decides. Keys and scripts belong to the
room that owns them (journal, limits).
"""
