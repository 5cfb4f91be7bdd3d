"""The admin port: what an operator, a scraper and an orchestrator may ask. It looks; it neither decides nor sends.

    server     the port: start, close
    api        the routes, thin
    door       who may enter, and how every mistake is answered
    query      a listing's filters, from a query string
    shapes     the JSON
    verdict    "was this charged?", in one sentence
    view       what the server is given to look at
    client     the other side: how our own commands ask

What is sealed in the journal never leaves it: no answer holds a body, a header value, a credential, a key hash or a
lease token. Health and metrics are open; the rest needs the bearer token.
"""
