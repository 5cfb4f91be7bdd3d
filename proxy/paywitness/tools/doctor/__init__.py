"""`paywitness doctor`: is this installation fit to hold money, and what must be changed.

checklist       all checks in their order
runner          a finding of a check (severity, finding, why it matters, remedy), and the time limits of checks
machine_checks  clock, limits of the process, ports
policy_checks   do the policies load, and are the variables set that they name
secret_checks   secrets: present, well formed, hard to guess, readable by their owner only; the local CA
sqlite_checks   the SQLite journal, and the directories and disk of journal and spool
redis_checks    a Redis: reachable, scripts, latency, clock, identity; the facts of INFO and CONFIG
"""
