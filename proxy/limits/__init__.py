"""Limits: what keeps a provider's bad minute from becoming a storm of ours. Local, and shared by a fleet over Redis.

    budgets.py         the interface to retry budgets, what is counted between two flushes, and the local budgets
    redis_budgets.py   the fleet's budgets, with a local shadow that is always warm
    circuits.py        the interface to circuits, and the local ones; redis_circuits.py the fleet's
    scripts.py         Lua scripts on Redis: one bounded try, and a small breaker when it is gone
    lua/               one script a file, its units on the first line

The arithmetic is the core's (`core/budget.py`, `core/circuit.py`). Nothing here is durable truth and nothing here says
whether money moved: that is the journal's. A limit whose store is gone goes on locally, at once, and never stops a call
that needs no limit.
"""
