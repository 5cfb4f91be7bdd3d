"""The parts of Redis access that journal and limits share. Keys and scripts belong to the room that owns them.

    url            the address of a Redis: RedisTarget
    connection     a connection to the primary, also through sentinels; reads replies; explains errors
    pipeline       Lua scripts by their hash; one connection; waiting calls go out as one pipeline; WAIT before a send

Nothing here retries. A script whose reply was lost may have run, so the caller decides.
"""
