"""What must survive a crash, a pause or a store that loses writes. Evidence is never dropped.

ages             both ages of everything in the journal: the heartbeat that compares the clocks
leases           the right to send, on a clock that counts suspension
levels           announces this sidecar, and raises the journal's level when no older one lives
due_times        wakes the background loops when something is due
journal_writer   claims and records, with retries over version conflicts and lost replies
recovery         expired leases become unknown outcomes, at start and while running
rollback         detects a journal that lost its last writes, and restores them
spool            evidence on the local disk that the journal did not take, and its replay
retention_sweep  when ended operations are retired
"""
