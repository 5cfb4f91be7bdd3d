"""The admin port: what an operator, a scraper and an orchestrator may ask, and what an operator may do. It neither
decides nor sends: the engine runs operator actions, and the lifecycle decides whether they are allowed.

    server      the routes and the listener
    payments    payments and intents, with one timeline; adopting, stating a number of a balance
    credentials  whose the credential of an operation is; mapping it
    limits_api  circuits, budgets and admission; forcing a circuit
    journal_api  the journal's level, who holds it; raising the level
    middleware  the bearer token, and problem+json for every error
    commands    operator commands from a JSON body
    listings    filters from a query string, and pages of operations
    shapes      the JSON
    backend     what the server is given: the journal, the engine's parts, the process's readiness
    client      the other side: how our own CLI calls the admin port

What is sealed in the journal never leaves it: no reply holds a body, a header value, a credential, a key hash or a
lease token. The id of an account is a keyed hash; it is shown, because events carry it too. Health and metrics are
open; the rest needs the bearer token.
"""
