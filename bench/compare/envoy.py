"""Envoy's configurations, from nothing set to set with care. Each sidecar is a listener with a cluster of its own, for
budgets and ejections are kept by cluster; one process serves them all."""

from __future__ import annotations

from dataclasses import dataclass

from bench.compare.scenarios import CALL_S, TRY_S


@dataclass(frozen=True, slots=True)
class Envoy:
    """What is added to a listener, a route and a cluster with nothing set. Texts are YAML, indented from zero."""

    route: str = ""
    cluster: str = ""


_RETRY = f"""\
timeout: {CALL_S:g}s
retry_policy:
  retry_on: 5xx,reset,connect-failure,refused-stream
  num_retries: 3
  per_try_timeout: {TRY_S:g}s
"""
_BUDGET = """\
circuit_breakers:
  thresholds:
  - retry_budget: {budget_percent: {value: 20}, min_retry_concurrency: 3}
"""
# Of one host all are ejected, so there must be no panic: by default Envoy then sends to it all the same.
_OUTLIERS = """\
outlier_detection:
  consecutive_5xx: 5
  interval: 1s
  base_ejection_time: 3s
  max_ejection_percent: 100
common_lb_config: {healthy_panic_threshold: {value: 0}}
"""
_CAREFUL_ROUTE = f"""\
timeout: {CALL_S:g}s
retry_policy:
  retry_on: 5xx,reset,connect-failure,refused-stream,retriable-4xx,retriable-status-codes
  retriable_status_codes: [429]
  num_retries: 4
  per_try_timeout: {TRY_S:g}s
  retry_back_off: {{base_interval: 0.1s, max_interval: 1s}}
  rate_limited_retry_back_off:
    reset_headers: [{{name: Retry-After, format: SECONDS}}]
    max_interval: {CALL_S:g}s
"""
# A budget that lets random failures be retried; ejection by the rate of failures, not by a few in a row.
_CAREFUL_CLUSTER = """\
connect_timeout: 1s
circuit_breakers:
  thresholds:
  - {max_requests: 200, retry_budget: {budget_percent: {value: 50}, min_retry_concurrency: 5}}
outlier_detection:
  consecutive_5xx: 20
  interval: 1s
  base_ejection_time: 1s
  max_ejection_time: 5s
  max_ejection_percent: 100
  failure_percentage_threshold: 85
  failure_percentage_minimum_hosts: 1
  failure_percentage_request_volume: 20
  enforcing_failure_percentage: 100
common_lb_config: {healthy_panic_threshold: {value: 0}}
"""

ENVOYS = {
    "defaults": Envoy(),
    "budget": Envoy(_RETRY, _BUDGET),
    "outliers": Envoy(_RETRY, _OUTLIERS),
    "careful": Envoy(_CAREFUL_ROUTE, _CAREFUL_CLUSTER),
}

_LISTENER = """\
  - address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: sidecar_{number}
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
          route_config:
            virtual_hosts:
            - name: provider
              domains: ["*"]
              include_attempt_count_in_response: true
              routes:
              - match: {{prefix: /}}
                route:
                  cluster: provider_{number}
{route}"""
_CLUSTER = """\
  - name: provider_{number}
    load_assignment:
      cluster_name: provider_{number}
      endpoints:
      - lb_endpoints:
        - endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {provider}}}}}}}
{cluster}"""


def configuration(envoy: Envoy, ports: list[int], provider_ports: list[int]) -> str:
    listeners = [
        _LISTENER.format(port=port, number=number, route=_indented(envoy.route, 18))
        for number, port in enumerate(ports)
    ]
    clusters = [
        _CLUSTER.format(provider=provider_port, number=number, cluster=_indented(envoy.cluster, 4))
        for number, provider_port in enumerate(provider_ports)
    ]
    return "static_resources:\n  listeners:\n" + "".join(listeners) + "  clusters:\n" + "".join(clusters)


def _indented(text: str, spaces: int) -> str:
    return "".join(f"{' ' * spaces}{line}\n" for line in text.splitlines())


def shown(envoy: Envoy, name: str) -> str:
    """For the report: what is set, beside what every one of them has; of the first, all of it."""
    if name == "defaults":
        return (
            "# envoy --concurrency 1; all four have this for each sidecar, and the others what is told below as well\n"
            + (configuration(envoy, [0], [0]).replace("port_value: 0", "port_value: PORT"))
        )
    parts = [("of the route", envoy.route), ("of the cluster", envoy.cluster)]
    return "".join(f"# {where}\n{text}" for where, text in parts if text)
