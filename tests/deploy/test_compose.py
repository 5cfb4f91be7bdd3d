"""compose.yaml. There is no Docker here: it is held against the specification, its parts against their own tools."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from paywitness.journal.redis.journal import RedisJournal
from paywitness.policy.book import load_directory
from tests.deploy.shipped import DEPLOY, GRACE_S, TOP, parse, told, unknown_variables
from tests.journal.redis_server import RedisServer

pytestmark = pytest.mark.slow

COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
PARTS = DEPLOY / "compose"


def mounts(service: str) -> dict[str, Path]:
    """From the path inside to what stands there, for what is of this repository."""
    found = {}
    for text in SERVICES[service].get("volumes", []):
        source, inside, *_ = text.split(":")
        if source.startswith("."):
            found[inside] = (DEPLOY / source).resolve()
    return found


def listened(service: str) -> set[int]:
    return {int(port.rpartition(":")[2]) for port in SERVICES[service].get("ports", [])}


def test_it_is_as_the_specification_wants_it() -> None:
    assert told("check-jsonschema", "--builtin-schema", "vendor.compose-spec", str(DEPLOY / "compose.yaml")) == ""


def test_all_seven_are_there_and_none_by_an_unnamed_version() -> None:
    assert set(SERVICES) == {"proxy", "sandbox", "redis", "prometheus", "alertmanager", "grafana", "jaeger"}
    ours = {"paywitness:latest"}  # built here
    assert all(":" in service["image"] and "latest" not in service["image"] for service in SERVICES.values()
               if service["image"] not in ours)  # fmt: skip


@pytest.mark.parametrize("service", list(SERVICES))
def test_everything_that_is_mounted_is_in_the_repository(service: str) -> None:
    for inside, source in mounts(service).items():
        assert source.exists(), f"{inside} of {service} is {source}"


@pytest.mark.parametrize("service", list(SERVICES))
def test_only_this_machine_can_reach_it(service: str) -> None:
    assert all(port.startswith("127.0.0.1:") for port in SERVICES[service].get("ports", []))


def test_what_the_proxy_and_the_sandbox_are_told_exists() -> None:
    proxy = SERVICES["proxy"]
    assert unknown_variables(set(proxy["environment"])) == set()
    assert proxy["environment"]["PAYWITNESS_POLICIES"] in mounts("proxy")
    assert float(proxy["stop_grace_period"].removesuffix("s")) > GRACE_S
    assert parse(SERVICES["sandbox"]["command"]) == "sandbox"


def test_the_policy_leads_to_the_sandbox_among_the_containers() -> None:
    (provider,) = load_directory(PARTS / "policies").providers.values()
    where = urlsplit(provider.upstream)
    assert where.hostname in SERVICES
    assert where.port in listened(where.hostname)


async def test_its_redis_is_fit_to_hold_the_journal(tmp_path: Path) -> None:
    program, *options = SERVICES["redis"]["command"]
    assert program == "redis-server"
    redis = RedisServer(tmp_path / "redis", "--appendonly", "no", *options)  # what is said last counts
    redis.start()
    try:
        journal = await RedisJournal.open(redis.url)
        await journal.close()
    finally:
        redis.stop()


def test_prometheus_takes_its_configuration_and_finds_the_rules_and_the_proxy(tmp_path: Path) -> None:
    inside = mounts("prometheus")
    text = (PARTS / "prometheus.yaml").read_text()
    assert [str(name) for name in inside if f"--config.file={name}" in SERVICES["prometheus"]["command"]]
    for path, source in inside.items():
        if source.is_dir():
            assert f"{path}/rules.yaml" in text
            assert f"{path}/alerts.yaml" in text
            text = text.replace(f"{path}/", f"{source}/")
    file = tmp_path / "prometheus.yaml"
    file.write_text(text)
    assert told("promtool", "check", "config", str(file)) == ""
    ours = next(job for job in yaml.safe_load(text)["scrape_configs"] if job["job_name"] == "paywitness")
    (target,) = ours["static_configs"][0]["targets"]
    name, _, port = target.partition(":")
    assert SERVICES[name]["environment"]["PAYWITNESS_ADMIN"].endswith(f":{port}")


def test_an_exemplar_is_kept_and_leads_to_its_trace() -> None:
    """From the proxy, which is built with spans and told where they go, to the page that Grafana links to."""
    assert SERVICES["prometheus"]["image"].startswith("prom/prometheus:v2.")  # a later one may need no such word
    assert "--enable-feature=exemplar-storage" in SERVICES["prometheus"]["command"]
    extras = SERVICES["proxy"]["build"]["args"]["EXTRAS"].split(",")
    assert set(extras) <= set(tomllib.loads((TOP / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    assert "otel" in extras
    assert re.search(r"(?m)^ARG EXTRAS=speed$", (DEPLOY / "Dockerfile").read_text())
    collector = urlsplit(SERVICES["proxy"]["environment"]["OTEL_EXPORTER_OTLP_ENDPOINT"])
    assert collector.hostname in SERVICES
    (source,) = yaml.safe_load((PARTS / "grafana" / "datasources.yaml").read_text())["datasources"]
    (link,) = source["jsonData"]["exemplarTraceIdDestinations"]
    assert link["name"] == "trace_id"  # as our exemplars call it
    assert urlsplit(link["url"]).port in listened(str(collector.hostname))
    assert link["url"].endswith("/$${__value.raw}")


def test_alertmanager_takes_its_configuration() -> None:
    assert told("amtool", "check-config", str(PARTS / "alertmanager.yaml")) == ""


def test_grafana_finds_dashboards_and_prometheus_on_first_login() -> None:
    inside = mounts("grafana")
    provisioned = {path: source for path, source in inside.items() if "/provisioning/" in path}
    assert {path.split("/")[-2] for path in provisioned} == {"dashboards", "datasources"}
    (dashboards,) = yaml.safe_load((PARTS / "grafana" / "dashboards.yaml").read_text())["providers"]
    assert list(inside[dashboards["options"]["path"]].glob("*.json"))
    (source,) = yaml.safe_load((PARTS / "grafana" / "datasources.yaml").read_text())["datasources"]
    where = urlsplit(source["url"])
    assert where.port in listened(str(where.hostname))
    assert source["isDefault"]
