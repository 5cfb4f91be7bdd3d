"""The SQLite journal: one file, one process, one writer thread and one reader thread.

journal    SqliteJournal: hands each call to a thread, which runs all waiting calls as one batch
writer     the writing connection, the transaction, every step that changes an operation, cursors, and the mark
reader     the read-only connection: lookups, lists, history, announcements; stored webhook events
rows       rows of operations, aliases and history: looked up and written within the writer's transaction
retention  tombstones and purging
schema     tables and migrations
file       lock, pragmas, what an error of SQLite means
"""
