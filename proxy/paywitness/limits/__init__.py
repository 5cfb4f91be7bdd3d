"""Limits: what keeps a provider's bad minute from becoming a storm of ours. Local, or shared by a fleet over Redis.

    budgets         the interface to retry budgets, what is counted between two flushes, and the local budgets
    redis_budgets   the fleet's budgets, with local ones beside them that are always warm
    circuits        the interface to circuits, and the local ones
    redis_circuits  the fleet's circuits
    admission       the queue in front of each provider: always local
    factory         which limits a sidecar has: its own or the fleet's
    redis_scripts   Lua scripts on Redis: one bounded attempt, and a breaker around it
    lua/            one script a file, its units on the first line

The arithmetic is the core's. Nothing here is durable truth or says whether money moved: that is the journal's. A
limit whose store is gone goes on locally, at once, and never stops a call that needs no limit.
"""
