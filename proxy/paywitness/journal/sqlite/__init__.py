"""The SQLite journal: one file, one process, one writer thread and one reader thread.

journal.py         SqliteJournal: hands each call to a worker
worker.py          a thread that runs all waiting calls as one batch
writer.py          the writing connection, the transaction, every step that changes an operation, and cursors
reader.py          the read-only connection: lookups, lists, history, announcements
rows.py            rows of operations, aliases and history: looked up and written within the writer's transaction
webhook_events.py  stored webhook events        retention.py  tombstones and purging
schema.py          tables and migrations        file.py       lock, pragmas, what an error of SQLite means
"""
