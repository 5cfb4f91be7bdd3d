"""The lanes: who pays which way. What is not said here is the same for all of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from bench.compare.envoy import ENVOYS, shown
from bench.compare.scenarios import CALL_S, PATIENCE_S, TRY_S


class Client(StrEnum):
    ONE_TRY = "one try"  # the proxy before it does the rest
    LOOP = "loop"
    TENACITY = "tenacity"
    STRIPE = "stripe SDK"


class Keys(StrEnum):
    NONE = "no key"
    MINTED = "a fresh key for every run, as SDKs mint them"
    ORDER = "the order's number, whenever this order is tried"


class Peer(StrEnum):
    NOBODY = "no proxy"
    ENVOY = "Envoy"
    NGINX = "nginx"
    MITMPROXY = "mitmproxy"
    PAYWITNESS = "Paywitness"


@dataclass(frozen=True, slots=True)
class Lane:
    name: str
    title: str
    client: Client
    keys: Keys
    peer: Peer = Peer.NOBODY
    set_up: str = ""  # which of ENVOYS
    sidecars: int = 1

    @property
    def is_ours(self) -> bool:
        return self.peer is Peer.PAYWITNESS

    def fits(self, pods: int) -> bool:
        """A scenario about one of ten wants a fleet: one sidecar alone is none."""
        return not (pods and self.is_ours and self.sidecars == 1)

    def proxies(self, pods: int) -> int:
        return 0 if self.peer is Peer.NOBODY else pods or self.sidecars


LANES = (
    Lane("naive", "direct, naive retries", Client.LOOP, Keys.NONE),
    Lane("stripe_sdk", "stripe SDK", Client.STRIPE, Keys.MINTED),
    Lane("stripe_sdk_order", "stripe SDK, key per order", Client.STRIPE, Keys.ORDER),
    Lane("tenacity", "tenacity, key per order", Client.TENACITY, Keys.ORDER),
    Lane("envoy_defaults", "Envoy, defaults", Client.ONE_TRY, Keys.MINTED, Peer.ENVOY, "defaults"),
    Lane("envoy_budget", "Envoy, retry budget", Client.ONE_TRY, Keys.MINTED, Peer.ENVOY, "budget"),
    Lane("envoy_outliers", "Envoy, outlier detection", Client.ONE_TRY, Keys.MINTED, Peer.ENVOY, "outliers"),
    Lane("envoy_careful", "Envoy with care, key per order", Client.ONE_TRY, Keys.ORDER, Peer.ENVOY, "careful"),
    Lane("nginx", "nginx", Client.ONE_TRY, Keys.MINTED, Peer.NGINX),
    Lane("mitmproxy", "mitmproxy", Client.ONE_TRY, Keys.MINTED, Peer.MITMPROXY),
    Lane("paywitness_1", "Paywitness, 1 sidecar", Client.ONE_TRY, Keys.MINTED, Peer.PAYWITNESS),
    Lane("paywitness_4", "Paywitness, 4 sidecars", Client.ONE_TRY, Keys.MINTED, Peer.PAYWITNESS, sidecars=4),
)
TRIES = 3  # of the loop
LOOP_PAUSE_S = 0.2
TENACITY_TRIES = 4
STRIPE_RETRIES = 2  # the SDK's own default

NGINX = f"""\
upstream provider {{
  # Three times the same: nginx tries another server, never the same one again. It counts no failures against them.
  server 127.0.0.1:PORT max_fails=0;
  server 127.0.0.1:PORT max_fails=0;
  server 127.0.0.1:PORT max_fails=0;
}}
location / {{
  proxy_pass http://provider;
  proxy_connect_timeout {TRY_S:g}s;
  proxy_read_timeout {TRY_S:g}s;
  proxy_next_upstream error timeout http_500 http_502 http_503 http_504 non_idempotent;
  proxy_next_upstream_tries 3;
  proxy_next_upstream_timeout {CALL_S:g}s;
  add_header x-upstream-status $upstream_status always;  # so that a caller knows whether there was more than one try
}}
"""
POLICY = """\
extends: paywitness:acme  # policies/acme.yaml: budget, circuit and the rest as shipped
upstream: {upstream}
timeouts: {{connect: 1s, first_byte: {try_s:g}s, deadline: {call_s:g}s}}
retry: {{default: {{attempts: 4}}}}  # as many tries as Envoy and tenacity have; the file that it extends has 3
budget: {{per_intent: 6}}  # retries of one order: as many as both runs of a job can use; there, 3
"""
MITMPROXY = ("--quiet", "--set", "connection_strategy=lazy")


def configuration_of(lane: Lane) -> str:
    """Everything that was set for a lane, for whoever disputes it."""
    if lane.peer is Peer.ENVOY:
        return shown(ENVOYS[lane.set_up], lane.set_up)
    if lane.peer is Peer.NGINX:
        return NGINX
    if lane.peer is Peer.MITMPROXY:
        return f"mitmdump --mode reverse:http://127.0.0.1:PORT@PORT {' '.join(MITMPROXY)}\n"
    if lane.is_ours:
        policy = POLICY.format(upstream="http://127.0.0.1:PORT", try_s=TRY_S, call_s=CALL_S)
        return "# paywitness run --journal redis://... --limits redis://... --webhooks off\n" + policy
    return _CLIENTS[lane.client]


_CLIENTS = {
    Client.LOOP: f"{TRIES} tries of {TRY_S:g} s, {LOOP_PAUSE_S:g} s apart, after anything but a 200 or a 402\n",
    Client.TENACITY: (
        f"stop=stop_after_attempt({TENACITY_TRIES}) | stop_after_delay({CALL_S:g}), "
        f"wait=wait_random_exponential(0.2, max=2)\n"
        f"retried: no answer within {TRY_S:g} s, a lost connection, 409, 429, 5xx\n"
    ),
    Client.STRIPE: (
        f"stripe.StripeClient(key, max_network_retries={STRIPE_RETRIES}, "
        f"http_client=stripe.AIOHTTPClient(ClientTimeout(total={TRY_S:g}), session=...))\n"
        "POST /v1/payment_intents with confirm=true; what is retried, and when, is the SDK's own\n"
        "its client over aiohttp: the default, over httpx, has a hundred connections, and everybody else any number\n"
    ),
}
HOW_A_PLAIN_CLIENT_WAITS = f"one request a run, {PATIENCE_S:g} s of patience"
