"""The admin port: the routes that operators, scrapers and orchestrators use. It neither decides nor sends. The engine
runs operator actions, and the lifecycle decides whether they are allowed.

    server      the routes and the listener
    payments    payments and intents, with one timeline; adopting a payment, stating a number of a balance
    credentials  the owner that an operation's credential is known to belong to; mapping and unmapping it
    limits_api  circuits, budgets and admission; forcing a circuit
    journal_api  the journal's level, and the sidecars that hold it; raising the level
    middleware  the bearer token, and problem+json for every error
    commands    operator commands from a JSON body
    listings    filters from a query string, and pages of operations
    shapes      the JSON
    backend     the parts that the server gets: the journal, the engine's parts, the process's readiness
    client      the other side: how our own CLI calls the admin port

Sealed data never leaves the journal: no reply holds a body, a header value, a credential, a key hash or a lease token.
The id of an account is a keyed hash. It is shown, because events carry it too. Health and metrics are open. Everything
else needs the bearer token.
"""
