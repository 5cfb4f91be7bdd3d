"""The tables of the embedded journal, and the migrations of older files.

The table `changes` is the timeline, the attempts with their evidence, the decisions and the outbox, all in one. It has
one row for each change, in the order of `seq`. No `seq` is used twice.
"""

from __future__ import annotations

import sqlite3

from paywitness.core.errors import JournalUnusable

APPLICATION_ID = 0x50575431  # "PWT1": distinguishes a journal from any other SQLite database

# Partial indexes grow with the open operations, not with all operations in the journal. A clean call enters and leaves
# only `leased`. Lists by state name their index, so both use the predicate here.
LISTED_BY_STATE = "state NOT IN ('succeeded', 'sending')"
IN_DOUBT = "state IN ('unknown', 'requires_review')"

_VERSION_1 = (
    # Ciphertexts come last: SQLite reads a row up to the last column in the query, and ciphertexts may span many pages.
    """CREATE TABLE operations (
        number INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        key TEXT NOT NULL,
        generation INTEGER NOT NULL,
        provider TEXT NOT NULL,
        operation TEXT NOT NULL,
        client_key TEXT NOT NULL,
        provider_key TEXT,
        currency TEXT,
        minor_units INTEGER,
        created_at REAL NOT NULL,
        identity TEXT NOT NULL,
        state TEXT NOT NULL,
        version INTEGER NOT NULL,
        updated_at REAL NOT NULL,
        first_sent_at REAL,
        ended_at REAL,
        due_at REAL,
        reference TEXT,
        incident TEXT,
        lease_token TEXT,
        lease_until_at REAL,
        standing TEXT NOT NULL,
        sealed_request BLOB,
        sealed_response BLOB,
        UNIQUE (key, generation)
    ) STRICT""",
    "CREATE INDEX by_client_key ON operations (client_key)",
    # If the client's own key goes upstream, the index above finds it already.
    "CREATE INDEX by_provider_key ON operations (provider_key) WHERE provider_key <> client_key",
    "CREATE INDEX by_reference ON operations (reference) WHERE reference IS NOT NULL",
    "CREATE INDEX leased ON operations (lease_until_at) WHERE lease_until_at IS NOT NULL",
    "CREATE INDEX due ON operations (due_at) WHERE due_at IS NOT NULL",
    f"CREATE INDEX by_state ON operations (state, id) WHERE {LISTED_BY_STATE}",
    "CREATE INDEX incidents ON operations (id) WHERE incident IS NOT NULL",
    f"""CREATE INDEX in_doubt ON operations (provider, operation, currency, state, minor_units, created_at)
        WHERE {IN_DOUBT}""",
    """CREATE TABLE changes (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        operation_id TEXT NOT NULL,
        version INTEGER NOT NULL,
        at REAL NOT NULL,
        entry TEXT NOT NULL,
        UNIQUE (operation_id, version)
    ) STRICT""",
    """CREATE TABLE revisions (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        provider TEXT NOT NULL,
        revision TEXT NOT NULL,
        content TEXT NOT NULL,
        kept_at REAL NOT NULL,
        UNIQUE (provider, revision)
    ) STRICT""",
    "CREATE INDEX latest_revisions ON revisions (provider, seq)",
    """CREATE TABLE credentials (
        account TEXT NOT NULL,
        credential TEXT NOT NULL,
        accepted_at REAL NOT NULL,
        PRIMARY KEY (account, credential)
    ) STRICT, WITHOUT ROWID""",
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value ANY NOT NULL) STRICT, WITHOUT ROWID",
)

# States in which a resolver may have work: not ended, and not being sent. The index is ordered by provider, so that a
# provider at its limit is skipped without reading its due operations.
DUE = "due_at IS NOT NULL AND state IN ('unknown', 'requires_review', 'pending', 'requires_action')"
WEBHOOK_EVENT_DONE = "result <> 'waiting' AND relay_due_at IS NULL"

_VERSION_2 = (
    "ALTER TABLE operations ADD COLUMN guard TEXT",  # while the operation holds its guard
    "ALTER TABLE operations ADD COLUMN subject TEXT",  # the guard's intent or target in the clear
    "ALTER TABLE operations ADD COLUMN stamp TEXT",  # if it differs from the id
    # Rows of version 1 get their guard too, as `core.guard.indexed_guard` would give it.
    """UPDATE operations SET
        guard = CASE WHEN state IN ('prepared', 'sending', 'backoff', 'unknown', 'requires_review')
            OR (json_extract(identity, '$.guard[0]') = 'intent' AND (state IN ('pending', 'requires_action')
                OR (state = 'succeeded' AND json_extract(standing, '$.reading') IS NOT 'reversed')))
            THEN json_extract(identity, '$.guard[1]') END,
        subject = nullif(json_extract(identity, '$.guard[2]'), ''),
        stamp = nullif(nullif(json_extract(identity, '$.stamp'), id), '')""",
    "CREATE INDEX guards ON operations (guard) WHERE guard IS NOT NULL",
    "CREATE INDEX by_subject ON operations (subject) WHERE subject IS NOT NULL",
    "CREATE INDEX by_stamp ON operations (stamp) WHERE stamp IS NOT NULL",
    "DROP INDEX due",
    f"CREATE INDEX due ON operations (provider, due_at) WHERE {DUE}",
    "ALTER TABLE changes ADD COLUMN told INTEGER",  # 1 if the change has an announcement
    "CREATE INDEX telling ON changes (seq) WHERE told = 1",
    "ALTER TABLE credentials ADD COLUMN sealed BLOB",
    """CREATE TABLE aliases (
        key TEXT PRIMARY KEY,
        client_key TEXT NOT NULL,
        operation_id TEXT NOT NULL,
        kind TEXT NOT NULL,
        at REAL NOT NULL
    ) STRICT, WITHOUT ROWID""",
    "CREATE INDEX aliases_by_client_key ON aliases (client_key)",
    "CREATE INDEX aliases_of_operation ON aliases (operation_id)",
    """CREATE TABLE tombstones (
        key TEXT PRIMARY KEY,
        operation_id TEXT NOT NULL,
        provider TEXT NOT NULL,
        operation TEXT NOT NULL,
        client_key TEXT NOT NULL,
        outcome TEXT NOT NULL,
        reference TEXT,
        ended_at REAL NOT NULL,
        buried_at REAL NOT NULL
    ) STRICT, WITHOUT ROWID""",
    "CREATE INDEX tombstones_by_age ON tombstones (buried_at)",
    """CREATE TABLE notices (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        provider TEXT NOT NULL,
        account TEXT NOT NULL,
        event_id TEXT NOT NULL,
        received_at REAL NOT NULL,
        result TEXT NOT NULL,
        operation_id TEXT,
        tries INTEGER NOT NULL,
        due_at REAL,
        relay_due_at REAL,
        sealed BLOB NOT NULL,
        UNIQUE (provider, account, event_id)
    ) STRICT""",
    "CREATE INDEX notices_due ON notices (due_at) WHERE due_at IS NOT NULL",
    "CREATE INDEX notices_to_relay ON notices (relay_due_at) WHERE relay_due_at IS NOT NULL",
    f"CREATE INDEX notices_done ON notices (received_at) WHERE {WEBHOOK_EVENT_DONE}",
    "CREATE TABLE cursors (name TEXT PRIMARY KEY, seq INTEGER NOT NULL) STRICT, WITHOUT ROWID",
)

_VERSION_3 = (
    # Rows that are kept longer than operations: payments, their names, payout references. Journals of earlier versions
    # have none, so the amounts of their payments are unknown.
    """CREATE TABLE ledger (
        key TEXT PRIMARY KEY,
        version INTEGER NOT NULL,
        due_at REAL,
        touched_at REAL NOT NULL,
        value TEXT NOT NULL
    ) STRICT, WITHOUT ROWID""",
    "CREATE INDEX ledger_due ON ledger (due_at) WHERE due_at IS NOT NULL",
    "CREATE INDEX ledger_ages ON ledger (touched_at)",
    # NULL if the payment has the operation's own id, as for its first operation. A clean payment needs no index entry.
    "ALTER TABLE operations ADD COLUMN payment TEXT",
    "CREATE INDEX by_payment ON operations (payment) WHERE payment IS NOT NULL",
)

REFUSED_ALIAS = "kind = 'refused'"

_VERSION_4 = (f"CREATE INDEX aliases_refused ON aliases (at) WHERE {REFUSED_ALIAS}",)

# JSON: the maker of the operation. Tombstones of earlier versions have none.
_VERSION_5 = ("ALTER TABLE tombstones ADD COLUMN maker TEXT",)

# The statements that lead to version 1, 2, ...: append, never edit.
MIGRATIONS: tuple[tuple[str, ...], ...] = (_VERSION_1, _VERSION_2, _VERSION_3, _VERSION_4, _VERSION_5)


def migrate(connection: sqlite3.Connection, migrations: tuple[tuple[str, ...], ...] = MIGRATIONS) -> None:
    """Create the tables, or migrate an older file, in one transaction. Raises JournalUnusable if the file is not a
    journal, or is newer than this release."""
    version = _version_of(connection)
    if version > len(migrations):
        raise JournalUnusable(
            f"the journal file was written by a newer paywitness (its version {version}, this one knows up to "
            f"{len(migrations)}): run that one again, or give this one a journal of its own"
        )
    if version == len(migrations):
        return
    connection.execute("BEGIN EXCLUSIVE")
    try:
        for statements in migrations[version:]:
            for statement in statements:
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {len(migrations)}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _version_of(connection: sqlite3.Connection) -> int:
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    application = int(connection.execute("PRAGMA application_id").fetchone()[0])
    tables = int(connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0])
    if application != APPLICATION_ID and (tables or version):
        raise JournalUnusable("the file is a SQLite database, but not a journal: give the journal a file of its own")
    return version
