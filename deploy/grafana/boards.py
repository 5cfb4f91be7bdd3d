"""The six dashboards, in the order in which somebody on call opens them."""

from __future__ import annotations

from deploy.grafana.incidents import INCIDENTS
from deploy.grafana.overview import OVERVIEW
from deploy.grafana.providers import PROVIDERS
from deploy.grafana.proxy import PROXY
from deploy.grafana.retries import RETRIES
from deploy.grafana.unknown import UNKNOWN

BOARDS = (OVERVIEW, PROVIDERS, RETRIES, UNKNOWN, INCIDENTS, PROXY)
