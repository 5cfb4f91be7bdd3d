"""What every user of Redis shares: url.py (RedisTarget), connection.py (to the primary, also through sentinels; what
its errors mean), responses.py (reads responses by the packet). Nothing here retries: a script whose reply was lost
may have run, so the caller decides. Keys and scripts belong to the room that owns them (journal, limits).
"""
