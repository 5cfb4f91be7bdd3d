"""Certificates that a webhook's sender names: fetched from the provider's own host over TLS, and kept for a while.

The address comes from a stranger. The scheme has held it against the hosts it allows; here its cost is bounded: a few
fetches at a time, so many in a minute, and nothing is kept that is not a certificate.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from proxy.clock import Clock
from proxy.core.call import Headers
from proxy.schemes.base import Certified, Scheme
from proxy.schemes.public_key import certificate_in
from proxy.upstream.client import UpstreamClient
from proxy.upstream.target import Origin, Timeouts, WireRequest

_log = logging.getLogger("paywitness.webhooks")

KEPT_MAX = 32
_KEPT_S = 86400.0  # a certificate does not change under its address; its own end is looked at on every check
_FETCHES_PER_MINUTE = 20  # a provider has one or two at a time: more are a stranger's inventions
_AT_A_TIME = 2
_BYTES_MAX = 64 * 1024
_TIMEOUTS = Timeouts(first_byte_s=5.0, answer_s=5.0)


@dataclass(slots=True)
class Certificates:
    upstream: UpstreamClient
    clock: Clock
    _kept: OrderedDict[str, tuple[float, bytes]] = field(default_factory=OrderedDict)  # address -> since when, PEM
    _fetched_mono: deque[float] = field(default_factory=lambda: deque(maxlen=_FETCHES_PER_MINUTE))
    _turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_A_TIME))

    async def equip(self, scheme: Scheme, headers: Headers) -> Scheme | None:
        """The scheme with the certificate that its sender names, where it takes one; None where it is not to be had."""
        address = scheme.certificate_at(headers) if isinstance(scheme, Certified) else None
        if address is None or not isinstance(scheme, Certified):
            return scheme
        pem = await self.at(address)
        return scheme.with_certificate(pem) if pem is not None else None

    async def at(self, address: str) -> bytes | None:
        """The certificate at an address that the scheme allows; None where it is not to be had now."""
        pem = self._known(address)
        if pem is not None:
            return pem
        async with self._turns:
            pem = self._known(address)  # somebody may have fetched it while we waited for our turn
            return pem if pem is not None else await self._fetch(address)

    def _known(self, address: str) -> bytes | None:
        since_mono, pem = self._kept.get(address, (0.0, b""))
        return pem if pem and self.clock.mono() - since_mono < _KEPT_S else None

    async def _fetch(self, address: str) -> bytes | None:
        now_mono = self.clock.mono()
        if len(self._fetched_mono) == _FETCHES_PER_MINUTE and now_mono - self._fetched_mono[0] < 60.0:
            return None
        self._fetched_mono.append(now_mono)
        parts = urlsplit(address)
        request = WireRequest("GET", parts.path.encode("ascii"), ((b"Accept", b"*/*"),), b"")
        evidence = await self.upstream.send(Origin.parse(f"https://{parts.netloc}"), request, _TIMEOUTS)
        response = evidence.response
        pem = response.body if response is not None and response.status_code == 200 else b""
        if len(pem) > _BYTES_MAX or certificate_in(pem) is None:
            _log.warning("a webhook's certificate was not to be had from %s", parts.netloc)
            return None
        self._kept[address] = (now_mono, pem)
        self._kept.move_to_end(address)
        while len(self._kept) > KEPT_MAX:
            self._kept.popitem(last=False)
        return pem
