"""The inbound HTTP server: bytes to a Call, a Reply to bytes. It rejects and bounds; it never decides what a payment
means.

    engine_interface     the server's view of the engine: the call handler and its streamed reply
    errors               request errors: the replies that end a request before the engine sees it
    heads                the caller's headers: those to forward, and the Paywitness-* ones; a reply to bytes; pure
    request              a request's head to provider, path and segments, to a Call, or to an internal page
    limits_and_timeouts  the limits on size and time of everything that a caller sends or takes
    refused_hosts        log lines about hosts that callers cannot reach, and how to repair that
    request_parser       bytes to requests; refuses ambiguous framing; pure
    connection           one caller's connection: its timeouts, half-close, disconnect, keep-alive, the ways to end
    dispatch             one request from its head to its reply, whole or streamed; the caller's body
    connect              a connection that begins with CONNECT: TLS interception, tunnels
    listener             the connections of one server; the main port: accepts sockets, peeks at redirected ones
    webhooks             the listener for providers' webhooks
    webhook_sources      where webhooks come from, and how many of one address may be false
    server               listeners, timeout checks, drain; the listeners of single providers

Rules: ambiguous framing is rejected, never repaired. Every wait for a caller is bounded. Of a request only the name of
a host that a caller could not reach is ever logged. A body that ended early never looks complete.
"""
