"""What journal and limits share of Redis. Keys and scripts belong to the room that owns them.

    url.py         where a Redis is: RedisTarget
    connection.py  a connection to the primary, also through sentinels; reads responses; what errors mean
    pipeline.py    one connection; waiting calls go out as one pipeline; WAIT before a send if the owner asks for it
    scripts.py     a Lua script and its hash

Nothing here retries: a script whose reply was lost may have run, so the caller decides.
"""
