"""What a case gives, as the bytes and the evidence that the core reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote_plus

from proxy.core.body import Encoding
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


def evidence_of(seen: Seen) -> Evidence:
    """The evidence of an attempt that came to this."""
    if seen.response is not None:
        return Evidence(NetworkPhase.COMPLETE, 1, None, response_of(seen.response), "", 0.0)
    assert seen.fault is not None
    phase = seen.phase if seen.phase is not None else _PHASES.get(seen.fault, NetworkPhase.AWAITING)
    return Evidence(phase, 1 if phase >= NetworkPhase.SENDING else 0, seen.fault, None, "", 0.0)


def response_of(given: GivenResponse) -> Response:
    headers = tuple(
        (name.encode("latin-1", "replace"), value.encode("latin-1", "replace")) for name, value in given.headers.items()
    )
    return Response(given.status_code, b"", headers, body_bytes(given.body, Encoding.JSON))


def body_bytes(body: Any, encoding: Encoding) -> bytes:
    """The body as it goes over the wire. A text stands as it is."""
    if body is None:
        return b""
    if isinstance(body, str):
        return body.encode()
    if encoding is Encoding.FORM:
        return "&".join(f"{quote_plus(name)}={quote_plus(value)}" for name, value in _form_pairs("", body)).encode()
    return json.dumps(body).encode()


def _form_pairs(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """`metadata: {order_id: 1}` as metadata[order_id]=1."""
    if isinstance(value, dict):
        for key, child in value.items():
            yield from _form_pairs(f"{name}[{key}]" if name else key, child)
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from _form_pairs(f"{name}[{index}]", child)
    else:
        yield name, value if isinstance(value, str) else json.dumps(value)
