"""What journal and limits share of Redis. Keys and scripts belong to the room that owns them.

    url            where a Redis is: RedisTarget
    connection     a connection to the primary, also through sentinels; reads responses; what errors mean
    pipeline       Lua scripts by their hash; one connection; waiting calls go out as one pipeline; WAIT before a send

Nothing here retries: a script whose reply was lost may have run, so the caller decides.
"""
