"""The HTTP/1.1 client: one call, one attempt on the wire, and Evidence of its effect.

    request         origin and request; the request's bytes; pure
    dial            a host name to a connected socket; tunnels to hosts that no policy names
    exchange        one request and its response: bytes to a response, and the record from which Evidence is made
    connection      one connection: the bytes written, the bytes received, when it must be reset
    tls             TLS as a transformation of bytes; a connection with TLS
    late_responses  connections that still listen after their attempt timed out
    stream          a call passed through piece by piece; never retried
    client          all of it in order; returns Evidence. How many connections an origin may have, and which call gets
                    the next one. The limits: connections and waiting calls, idle time and age of a connection, the size
                    of a response

Rules: this package returns evidence and retries nothing. It never sends a request a second time, never follows a
redirect, never decompresses, and never gives unrequested bytes to the next call.
"""
