"""The HTTP/1.1 client: one call, one attempt on the wire, and Evidence of what was seen.

    request          origin and request; the request's bytes; pure
    response_parser  bytes to a response, or to the reason why they are none; pure
    dial             a host name to a connected socket; tunnels to hosts that no policy names
    exchange         one request and its response: the running record from which Evidence is made
    connection       one connection: what was written, what came back, when it must be reset
    tls              TLS as a transformation of bytes; a connection with TLS
    late_responses   connections that still listen after their attempt timed out
    pool             how many connections an origin may have, and who is next; the limits: connections and waiting
                     calls, idle time and age of a connection, the size of a response
    stream           a call passed through piece by piece; never retried
    client           all of it in order; returns Evidence

Rules: this package states facts and repeats nothing. It never sends a request a second time, never follows a
redirect, never decompresses, and never gives unrequested bytes to the next call.
"""
