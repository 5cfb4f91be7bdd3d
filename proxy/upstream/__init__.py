"""The lean HTTP/1.1 client: one call, one attempt at the wire, and Evidence of what was seen.

    target    where a call goes, what goes there, how long each phase may take; the request's bytes
    answer    bytes to a response, or to the reason why they are none; pure
    tls       TLS as a transformation of bytes; pure
    dial      a name to a connected socket
    exchange  one request and its answer: the running record from which Evidence is made
    wire      one connection: what was written, what came back, when it must be reset
    secure    the same with TLS
    harvest   connections whose attempt timed out, listened to a little longer
    pool      how many connections an origin may have, and who is next
    client    all of it in order; returns Evidence
    stream    the same for a call that nobody may repeat: passed through piece by piece

The rule of the room: it states facts and repeats nothing. It never sends a request a second time, never follows a
redirect, never decompresses, and never gives bytes that it did not ask for to the next call.
"""
