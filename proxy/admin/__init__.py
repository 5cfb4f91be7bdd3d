"""The admin port: what an operator, a scraper and an orchestrator may ask, and what an operator may do. It neither
decides nor sends: what is done is done by the engine's review, which asks the lifecycle.

    server         the port: start, close
    api            the routes, thin
    door           who may enter, and how every mistake is answered
    query          a listing's filters, from a query string
    lists          pages of operations
    orders         what an operator wants done, from a JSON body
    limits         circuits, budgets and admission: seen, and circuits forced
    shapes         the JSON
    contradiction  both pieces of evidence of an incident
    verdict        "was this charged?", in one sentence
    view           what the server is given to look at, and to act by
    client         the other side: how our own commands ask

What is sealed in the journal never leaves it: no answer holds a body, a header value, a credential, a key hash or a
lease token. Health and metrics are open; the rest needs the bearer token.
"""
