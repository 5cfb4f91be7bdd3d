"""What a case gives, as the bytes and the evidence that the core reads."""

from __future__ import annotations

from typing import Any

from proxy.core.body import Encoding, encode
from proxy.core.evidence import Evidence, NetworkPhase, Response, WireFault
from proxy.workbench.case import GivenResponse, Seen

# The phase in which a fault shows, where the case says nothing else. From SENDING on the provider may have seen it.
_PHASES = {
    WireFault.CIRCUIT_OPEN: NetworkPhase.RESOLVING,
    WireFault.NOT_ADMITTED: NetworkPhase.RESOLVING,
    WireFault.POOL_EXHAUSTED: NetworkPhase.RESOLVING,
    WireFault.DNS_FAILURE: NetworkPhase.RESOLVING,
    WireFault.CONNECT_REFUSED: NetworkPhase.CONNECTING,
    WireFault.CONNECT_TIMEOUT: NetworkPhase.CONNECTING,
    WireFault.CONNECT_FAILED: NetworkPhase.CONNECTING,
    WireFault.TLS_FAILURE: NetworkPhase.HANDSHAKING,
    WireFault.TLS_TIMEOUT: NetworkPhase.HANDSHAKING,
    WireFault.LEASE_OVER: NetworkPhase.HANDSHAKING,
    WireFault.WRITE_TIMEOUT: NetworkPhase.SENDING,
    WireFault.BODY_TIMEOUT: NetworkPhase.RECEIVING,
    WireFault.MALFORMED: NetworkPhase.RECEIVING,
    WireFault.OVERSIZED: NetworkPhase.RECEIVING,
}


def evidence_of(seen: Seen, encoding: Encoding = Encoding.JSON) -> Evidence:
    """The evidence of an attempt that came to this. `encoding` is that of requests."""
    if seen.response is not None:
        return Evidence(NetworkPhase.COMPLETE, 1, None, response_of(seen.response, encoding), "", 0.0)
    assert seen.fault is not None
    phase = seen.phase if seen.phase is not None else _PHASES.get(seen.fault, NetworkPhase.AWAITING)
    return Evidence(phase, 1 if phase >= NetworkPhase.SENDING else 0, seen.fault, None, "", 0.0)


def response_of(given: GivenResponse, encoding: Encoding = Encoding.JSON) -> Response:
    headers = tuple(
        (name.encode("latin-1", "replace"), value.encode("latin-1", "replace")) for name, value in given.headers.items()
    )
    answered_in = Encoding.XML if encoding is Encoding.XML else Encoding.JSON
    return Response(given.status_code, b"", headers, body_bytes(given.body, answered_in))


def body_bytes(body: Any, encoding: Encoding) -> bytes:
    """The body as it goes over the wire. A text stands as it is. XML has one root: what has several members is
    JSON, which may stand in its place."""
    if body is None:
        return b""
    if isinstance(body, str):
        return body.encode()
    rooted = isinstance(body, dict) and len(body) == 1
    return encode(body, encoding if rooted or encoding is not Encoding.XML else Encoding.JSON)
