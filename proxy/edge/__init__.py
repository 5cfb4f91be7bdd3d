"""The edge: bytes to a Call, a Reply to bytes. It refuses and bounds; it never decides what a payment means.

    carrier      what the edge needs of the engine
    limits       how much and how long; what is counted
    refused      the answers that end a request before the engine hears of it
    way          how a caller came in: by our address, a provider's port, a proxy setting, redirected; pure
    target       the request line's path to provider, path, query, segments; pure
    wishes       the caller's headers to those that go on, and what was meant for us; pure
    request      a request's head to a Call, or to a page of our own
    body         the caller's body: whole within bounds, or piece by piece
    answers      a reply to bytes; pure
    hall         what the connections of one server share
    patience     the part of a connection that knows what it waits for, how long, and how to end
    seam         where one request ends and the next begins, and whether it begins as it should
    connection   one caller's connection: half-closing, leaving, what may follow what
    streaming    an answer that is passed on while it is still coming
    exchange     one request from its head to its answer, as one vertical list
    sniffing     what a redirected caller wants, looked at and left unread
    tunnel       bytes between two connections, untouched
    doorstep     a connection until it is known what it is: CONNECT, TLS in a provider's name, tunnels
    porch        the main port's listener
    ports        ports of single providers
    webhooks     where providers' webhooks come in
    server       listeners, the hand of the clock, the drain

The rules of the room: ambiguous framing is refused, never repaired; every wait for a caller is bounded; nothing of a
request is ever logged; a body that ended early never looks like one that ended.
"""
