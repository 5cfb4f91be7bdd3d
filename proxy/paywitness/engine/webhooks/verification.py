"""The parts of checking a webhook: the signature scheme that a policy names with its options, the certificate that the
sender names, and the payload under the scheme. Also the sealed form in which a webhook is stored.

A certificate is fetched from the provider's own host over TLS and cached for a day. A stranger may have written its
address. So the scheme has checked the address against the hosts it allows, and this module bounds the cost: a few
fetches at a time, a few in a minute, and only certificates are cached.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from urllib.parse import urlsplit

from paywitness.clock import Clock
from paywitness.core.bodies.bounds import STORED_BOUNDS, WEBHOOK_BOUNDS, BodyBounds
from paywitness.core.bodies.tree import Tree, decode, decode_json, decompressed
from paywitness.core.call import Headers
from paywitness.core.errors import BodyError, UnreadableSecret
from paywitness.core.policy import UpstreamTimeouts
from paywitness.core.webhook_event import WebhookRules
from paywitness.repeated_lines import REPEATS
from paywitness.secrets import Vault
from paywitness.upstream.client import UpstreamClient
from paywitness.upstream.request import Origin, WireRequest
from paywitness.webhook_signatures.registry import scheme_named
from paywitness.webhook_signatures.rsa import parse_certificate
from paywitness.webhook_signatures.scheme import CertificateScheme, PayloadExtractor, SignatureScheme

# --- Stored webhooks
#
# The stored, sealed form of a provider's webhook: one event, the headers that it came with and, if it is to be relayed,
# the raw webhook. If a webhook has several events, each is stored on its own. The raw bytes are stored once, with the
# first event that was new.

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class StoredWebhook:
    headers: Headers
    event: Tree  # None: no event of ours
    raw: bytes = b""  # the raw webhook for the relay; empty if there is none, or if another of its events carries it

    def header(self, name: str) -> str | None:
        wanted = name.lower().encode("latin-1")
        return next((value.decode("latin-1") for key, value in self.headers if key.lower() == wanted), None)


def decode_json_webhook(headers: Headers, raw: bytes, bounds: BodyBounds = WEBHOOK_BOUNDS) -> Tree:
    """The content of a webhook in JSON. Raises BodyError."""
    return decode_json(decompressed(raw, StoredWebhook(headers, None).header("Content-Encoding"), bounds), bounds)


def seal_webhook(vault: Vault, webhook: StoredWebhook, bound_to: str, *, is_whole: bool) -> bytes:
    """Seal a webhook. `is_whole`: the event is the whole content of the webhook, so it need not be stored beside the
    raw bytes."""
    told = webhook.event is not None and not (is_whole and webhook.raw)
    event = json.dumps(webhook.event, separators=(",", ":")).encode() if told else b""
    pairs = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in webhook.headers]
    head = {"format": _FORMAT, "headers": pairs, "event_bytes": len(event), "unread": webhook.event is None}
    return vault.seal(json.dumps(head).encode() + b"\n" + event + webhook.raw, bound_to)


def open_webhook(vault: Vault, sealed: bytes, bound_to: str) -> StoredWebhook:
    """Open a sealed webhook. Raises UnreadableSecret."""
    head, _, rest = vault.open(sealed, bound_to).partition(b"\n")
    told = json.loads(head)
    if told.get("format") != _FORMAT:
        raise UnreadableSecret("what was sealed is not what this version writes")
    headers = tuple((name.encode("latin-1"), value.encode("latin-1")) for name, value in told["headers"])
    length = told["event_bytes"]
    raw = rest[length:]
    if told["unread"]:
        return StoredWebhook(headers, None, raw)
    try:
        event = (
            decode_json(rest[:length], STORED_BOUNDS) if length else decode_json_webhook(headers, raw, STORED_BOUNDS)
        )
    except BodyError:
        raise UnreadableSecret("what was sealed is no event") from None
    return StoredWebhook(headers, event, raw)


# --- Signature schemes

_log = logging.getLogger("paywitness.webhooks")
_ENVIRONMENT_PREFIX = "env:"


def scheme_for(rules: WebhookRules, environment: Mapping[str, str]) -> SignatureScheme | None:
    """The scheme of the rules. None if one of its options names a variable that is not set: then it can check
    nothing."""
    options = {
        name: environment.get(value.removeprefix(_ENVIRONMENT_PREFIX), "")
        if value.startswith(_ENVIRONMENT_PREFIX)
        else value
        for name, value in rules.options.items()
    }
    return _make_scheme(rules.scheme, tuple(sorted(options.items())))


@lru_cache(maxsize=64)
def _make_scheme(name: str, options: tuple[tuple[str, str], ...]) -> SignatureScheme | None:
    try:
        return scheme_named(name, dict(options))
    except ValueError as error:
        _log.error("webhooks cannot be checked by the scheme %s: %s", name, error)  # once: the result is cached
        return None


def decode_payload(scheme: SignatureScheme, headers: Headers, body: bytes, bounds: BodyBounds = WEBHOOK_BOUNDS) -> Tree:
    """The content of a webhook, which is JSON unless its scheme has another form. Raises BodyError."""
    if not isinstance(scheme, PayloadExtractor):
        return decode_json_webhook(headers, body, bounds)
    text, encoding = scheme.extract_payload(body)
    return decode(text, encoding, bounds)


# --- Signer certificates


CACHED_CERTIFICATES_MAX = 32
_CACHED_FOR_S = 86400.0  # a certificate does not change under its address; every check reads its expiry
_FETCHES_PER_MINUTE = 20  # a provider has one or two at a time: more are inventions of strangers
_CONCURRENT_FETCHES_MAX = 2
_CERTIFICATE_BYTES_MAX = 64 * 1024
_FETCH_TIMEOUTS = UpstreamTimeouts(first_byte_s=5.0, response_s=5.0)


@dataclass(slots=True)
class SignerCertificates:
    upstream: UpstreamClient
    clock: Clock
    _cache: OrderedDict[str, tuple[float, bytes]] = field(default_factory=OrderedDict)  # by address: since when, PEM
    _fetched_mono: deque[float] = field(default_factory=lambda: deque(maxlen=_FETCHES_PER_MINUTE))
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_CONCURRENT_FETCHES_MAX))

    async def scheme_with_certificate(self, scheme: SignatureScheme, headers: Headers) -> SignatureScheme | None:
        """The scheme with the certificate that the sender names, if it needs one; None if that cannot be fetched."""
        url = scheme.certificate_url(headers) if isinstance(scheme, CertificateScheme) else None
        if url is None or not isinstance(scheme, CertificateScheme):
            return scheme
        pem = await self.get(url)
        return scheme.with_certificate(pem) if pem is not None else None

    async def get(self, url: str) -> bytes | None:
        """The certificate at an address that the scheme allows; None if it cannot be fetched now."""
        pem = self._cached(url)
        if pem is not None:
            return pem
        async with self._slots:
            pem = self._cached(url)  # another webhook may have fetched it while we waited for a slot
            return pem if pem is not None else await self._fetch(url)

    def _cached(self, url: str) -> bytes | None:
        since_mono, pem = self._cache.get(url, (0.0, b""))
        return pem if pem and self.clock.mono() - since_mono < _CACHED_FOR_S else None

    async def _fetch(self, url: str) -> bytes | None:
        now_mono = self.clock.mono()
        if len(self._fetched_mono) == _FETCHES_PER_MINUTE and now_mono - self._fetched_mono[0] < 60.0:
            return None
        self._fetched_mono.append(now_mono)
        parts = urlsplit(url)
        request = WireRequest("GET", parts.path.encode("ascii"), ((b"Accept", b"*/*"),), b"")
        evidence = await self.upstream.send(Origin.parse(f"https://{parts.netloc}"), request, _FETCH_TIMEOUTS)
        response = evidence.response
        pem = response.body if response is not None and response.status_code == 200 else b""
        if len(pem) > _CERTIFICATE_BYTES_MAX or parse_certificate(pem) is None:
            _log.warning("a webhook's certificate could not be fetched from %s", parts.netloc, extra=REPEATS)
            return None
        self._cache[url] = (now_mono, pem)
        self._cache.move_to_end(url)
        while len(self._cache) > CACHED_CERTIFICATES_MAX:
            self._cache.popitem(last=False)
        return pem
