"""Limits: they keep a provider's outage from becoming a storm of retries. Local, or shared by a fleet over Redis.

    budgets         the interface to retry budgets, the counts between two flushes, and the local budgets
    redis_budgets   the fleet's budgets, with local ones beside them that are always warm
    circuits        the interface to circuits, and the local ones
    redis_circuits  the fleet's circuits
    admission       the queue in front of each provider: always local
    factory         which limits a sidecar has: its own or the fleet's
    redis_scripts   Lua scripts on Redis: one bounded attempt, and a breaker around it
    lua/            one script a file, its units on the first line

The arithmetic is in `core`. Nothing here is durable or says whether money moved: the journal does. If the store of a
limit is unavailable, the limit goes on locally at once. It never stops a call that needs no limit.
"""
