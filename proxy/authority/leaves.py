"""TLS contexts of single hosts, made when they are first asked for and made again well before they end."""

from __future__ import annotations

import os
import ssl
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from cryptography.hazmat.primitives.asymmetric import ec

from proxy.authority.certificates import LEAF_S, Authority, Leaf, at, make_leaf
from proxy.clock import Clock

_KEPT_MAX = 256  # hosts at a time; wildcards in a policy may stand for any number
_RENEWED_BEFORE = timedelta(seconds=LEAF_S / 2)


@dataclass(slots=True)
class _Kept:
    authority: Authority
    leaf: Leaf
    context: ssl.SSLContext


class Leaves:
    """The server's side of TLS for the hosts of policies."""

    def __init__(self, authority: Callable[[], Authority | None], clock: Clock) -> None:
        self._authority = authority  # the one in force: it may be exchanged while we run
        self._clock = clock
        self._key = ec.generate_private_key(ec.SECP256R1())  # one for all leaves of this process; never written
        self._kept: OrderedDict[str, _Kept] = OrderedDict()

    def context_for(self, host: str) -> ssl.SSLContext | None:
        """None where no authority covers the host: clients would refuse whatever we showed them."""
        authority = self._authority()
        if authority is None or not authority.covers(host):
            return None
        now = at(self._clock.now())
        kept = self._kept.get(host)
        if kept is None or kept.authority is not authority or kept.leaf.ends_at - now < _RENEWED_BEFORE:
            leaf = make_leaf(authority, host, self._key, now)
            kept = self._kept[host] = _Kept(authority, leaf, _server_context(leaf))
            if len(self._kept) > _KEPT_MAX:
                self._kept.popitem(last=False)
        self._kept.move_to_end(host)
        return kept.context


def _only(host: str) -> Callable[[ssl.SSLObject, str | None, ssl.SSLContext], int | None]:
    """No other name may be asked for on a connection that was opened for this one."""

    def answer(session: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> int | None:
        same = name is None or name.lower().removesuffix(".") == host
        return None if same else ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME

    return answer


def _server_context(leaf: Leaf) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])  # HTTP/2 is declined: clients then speak 1.1
    context.sni_callback = _only(leaf.host)
    descriptor = os.memfd_create("leaf")  # OpenSSL loads from files alone; this one is in memory, and ours
    try:
        os.write(descriptor, leaf.pem)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
    return context
