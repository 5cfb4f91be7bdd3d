"""The Kubernetes manifests, rendered by kubectl and held against the API's own schemas. No cluster runs here."""

from __future__ import annotations

import functools
import re
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from deploy.kubernetes.__main__ import WRITTEN, resource
from paywitness.policy.book import load_directory
from tests.deploy.shipped import DEPLOY, OUR_USER, SECRETS, TOP, parse, told, tool, unknown_variables

pytestmark = pytest.mark.slow

KUBERNETES = DEPLOY / "kubernetes"
OVERLAYS = ["sidecar", "redirect", "shared"]
VERSIONS = ["1.33", "1.37"]  # the first with native sidecars for good; the newest that is known here
NOT_OF_KUBERNETES = {"PodMonitor", "PrometheusRule"}
CLOSED = {
    "runAsUser": OUR_USER,
    "runAsGroup": OUR_USER,
    "runAsNonRoot": True,
    "readOnlyRootFilesystem": True,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
ROOT_OF_THE_NETWORK = CLOSED | {
    "runAsUser": 0,
    "runAsGroup": 0,
    "runAsNonRoot": False,
    "capabilities": {"drop": ["ALL"], "add": ["NET_ADMIN"]},
}
PRIVATE = {"10.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16"}
Resource = dict[str, Any]


@functools.cache
def rendered(overlay: str) -> list[Resource]:
    """As `kubectl apply -k` would send them."""
    command = [tool("kubectl"), "kustomize", str(KUBERNETES / "overlays" / overlay)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # where it warns of what is deprecated
    return list(yaml.safe_load_all(done.stdout))


def only(overlay: str, kind: str) -> Resource:
    (found,) = [one for one in rendered(overlay) if one["kind"] == kind]
    return found


def pod(overlay: str) -> Resource:
    return dict(only(overlay, "Deployment")["spec"]["template"]["spec"])


def ours(overlay: str) -> dict[str, Resource]:
    """Our containers, by name, in the order in which they start."""
    containers = [*pod(overlay).get("initContainers", []), *pod(overlay)["containers"]]
    return {one["name"]: one for one in containers if one["name"].startswith("paywitness")}


def sidecar(overlay: str) -> Resource:
    return ours(overlay)["paywitness"]


# --- the files


@pytest.mark.parametrize(
    "file", [*KUBERNETES.rglob("kustomization.yaml")], ids=lambda file: str(file.parent.relative_to(KUBERNETES))
)
def test_every_file_that_is_named_is_there_and_none_is_left_over(file: Path) -> None:
    said = yaml.safe_load(file.read_text())
    named = [*said.get("resources", []), *said.get("components", [])]
    named += [patch["path"] for patch in said.get("patches", [])]
    for maker in said.get("configMapGenerator", []):
        named += [*maker.get("files", []), *maker.get("envs", [])]
    assert all((file.parent / name).exists() for name in named)
    here = {str(path.relative_to(file.parent)) for path in file.parent.rglob("*") if path.is_file()}
    assert here - {"kustomization.yaml"} == {name for name in named if not name.startswith("..")}


@pytest.mark.parametrize("file", [*KUBERNETES.glob("base/*.yaml"), *KUBERNETES.glob("overlays/*/*.yaml")], ids=str)
def test_whole_resources_are_as_kubernetes_wants_them(file: Path) -> None:
    if file.name in {"kustomization.yaml", "trust.yaml"}:  # these are Kustomize's
        return
    for one in yaml.safe_load_all(file.read_text()):
        if one["kind"] not in NOT_OF_KUBERNETES:
            kubernetes_validate.validate(one, VERSIONS[-1], strict=True)


def test_the_rules_are_those_of_prometheus(tmp_path: Path) -> None:
    assert WRITTEN.read_text() == resource(), "run python -m deploy.kubernetes"
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump(yaml.safe_load(WRITTEN.read_text())["spec"]))
    assert told("promtool", "check", "rules", str(file)) == ""


def test_the_policies_load() -> None:
    assert load_directory(KUBERNETES / "base" / "policies").providers


# --- what Kustomize makes of them


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_what_is_rendered_is_as_kubernetes_wants_it(overlay: str, version: str) -> None:
    for one in rendered(overlay):
        if one["kind"] not in NOT_OF_KUBERNETES:
            kubernetes_validate.validate(one, version, strict=True)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_kind_that_is_promised_is_there(overlay: str) -> None:
    kinds = {one["kind"] for one in rendered(overlay)}
    assert kinds >= {"ConfigMap", "Deployment", "NetworkPolicy", "PodMonitor", "PrometheusRule"}
    if overlay == "shared":
        assert kinds >= {"Service", "PodDisruptionBudget", "HorizontalPodAutoscaler"}


@pytest.mark.parametrize("overlay", ["sidecar", "redirect"])
def test_the_sidecar_starts_before_the_service_and_ends_after_it(overlay: str) -> None:
    assert sidecar(overlay)["restartPolicy"] == "Always"
    assert sidecar(overlay)["startupProbe"]["httpGet"]["path"] == "/readyz"
    assert "paywitness" not in {one["name"] for one in pod(overlay)["containers"]}


def test_a_redirect_is_prepared_before_the_sidecar_starts() -> None:
    assert list(ours("redirect")) == ["paywitness-ca", "paywitness-redirect", "paywitness"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_our_containers_may_do_nothing_but_one_that_sets_the_kernels_rules(overlay: str) -> None:
    for name, container in ours(overlay).items():
        if name == "paywitness-redirect":
            assert container["securityContext"] == ROOT_OF_THE_NETWORK
            assert "restartPolicy" not in container  # it ends
        else:
            assert container["securityContext"] == CLOSED


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_what_our_containers_are_told_exists(overlay: str) -> None:
    settings = only_named(overlay, "ConfigMap", "paywitness-settings")["data"]
    assert unknown_variables(set(settings)) == set()
    for container in ours(overlay).values():
        assert parse(container["args"]) in {"run", "ca init", "redirect install"}
        assert unknown_variables({one["name"] for one in container.get("env", [])}) == set()


def only_named(overlay: str, kind: str, name: str) -> Resource:
    (found,) = [one for one in rendered(overlay) if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return found


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_secrets_come_from_a_secret_whose_keys_the_page_tells(overlay: str) -> None:
    page = (TOP / "docs" / "deployment.md").read_text()
    given = {one["name"]: one for one in sidecar(overlay)["env"]}
    needed = {*SECRETS, "PAYWITNESS_JOURNAL", "PAYWITNESS_LIMITS"} - {"PAYWITNESS_EVENTS_SECRET"}
    for name in needed:
        reference = given[name]["valueFrom"]["secretKeyRef"]
        assert reference["name"] == "paywitness"
        assert f"--from-literal={reference['key']}=" in page
    assert all("valueFrom" in given[name] or name not in needed for name in given)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_mount_has_its_volume_and_the_home_can_be_written(overlay: str) -> None:
    volumes = {one["name"]: one for one in pod(overlay)["volumes"]}
    for container in [*ours(overlay).values(), *pod(overlay)["containers"]]:
        assert {one["name"] for one in container.get("volumeMounts", [])} <= volumes.keys()
    home = only_named(overlay, "ConfigMap", "paywitness-settings")["data"]["PAYWITNESS_HOME"]
    (mount,) = [one for one in sidecar(overlay)["volumeMounts"] if one["mountPath"] == home]
    assert "emptyDir" in volumes[mount["name"]]
    assert not mount.get("readOnly")


def test_a_service_sees_the_bundle_and_not_the_authoritys_key() -> None:
    (service,) = pod("redirect")["containers"]
    assert {one["name"] for one in service["volumeMounts"]} == {"paywitness-trust"}
    bundle = ours("redirect")["paywitness-ca"]["args"][-1]
    told_to_trust = {one["name"]: one.get("value") for one in service["env"]}
    assert told_to_trust["SSL_CERT_FILE"] == told_to_trust["REQUESTS_CA_BUNDLE"] == bundle
    assert "STRIPE_API_BASE" not in told_to_trust  # it does not know of us


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_there_is_time_to_drain(overlay: str) -> None:
    settings = only_named(overlay, "ConfigMap", "paywitness-settings")["data"]
    stop = sidecar(overlay).get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    assert pod(overlay)["terminationGracePeriodSeconds"] > float(settings["PAYWITNESS_GRACE_SECONDS"]) + stop
    assert (stop > 0) == (overlay == "shared")


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_health_is_asked_where_it_is_told(overlay: str) -> None:
    settings = only_named(overlay, "ConfigMap", "paywitness-settings")["data"]
    ports = {one["name"]: one["containerPort"] for one in sidecar(overlay)["ports"]}
    for probe, path in (("startupProbe", "/readyz"), ("readinessProbe", "/readyz"), ("livenessProbe", "/healthz")):
        asked = sidecar(overlay)[probe]["httpGet"]
        assert asked["path"] == path
        assert settings["PAYWITNESS_ADMIN"] == f"0.0.0.0:{ports[asked['port']]}"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_prometheus_finds_the_port(overlay: str) -> None:
    """By hand: no schema of the operator's own is at hand here."""
    spec = only(overlay, "PodMonitor")["spec"]
    assert spec.keys() == {"selector", "podMetricsEndpoints"}
    (endpoint,) = spec["podMetricsEndpoints"]
    assert endpoint.keys() == {"port", "path", "interval", "scrapeTimeout"}
    (wanted,) = spec["selector"]["matchExpressions"]
    assert wanted["operator"] == "Exists"
    assert wanted["key"] in only(overlay, "Deployment")["spec"]["template"]["metadata"]["labels"]
    ports = {one["name"]: one["containerPort"] for one in sidecar(overlay)["ports"]}
    allowed = [rule for rule in only(overlay, "NetworkPolicy")["spec"]["ingress"] if "from" in rule]
    assert ports[endpoint["port"]] in {port["port"] for rule in allowed for port in rule["ports"]}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_nobody_reaches_what_is_private_but_dns_and_redis(overlay: str) -> None:
    policy = only(overlay, "NetworkPolicy")["spec"]
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
    labels = only(overlay, "Deployment")["spec"]["template"]["metadata"]["labels"].items()
    assert policy["podSelector"]["matchLabels"].items() <= labels
    blocks = [to["ipBlock"] for rule in policy["egress"] for to in rule["to"] if "ipBlock" in to]
    assert blocks
    assert all(
        {"10.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16"} <= {*one["except"]} for one in blocks
    )


def test_the_services_lead_to_the_ports_of_the_pods() -> None:
    ports = {one["name"]: one["containerPort"] for one in sidecar("shared")["ports"]}
    labels = only("shared", "Deployment")["spec"]["template"]["metadata"]["labels"].items()
    for service in (one for one in rendered("shared") if one["kind"] == "Service"):
        assert service["spec"]["selector"].items() <= labels
        assert [ports[port["targetPort"]] for port in service["spec"]["ports"]] == [
            port["port"] for port in service["spec"]["ports"]
        ]


def test_the_page_names_every_overlay() -> None:
    page = (TOP / "docs" / "deployment.md").read_text()
    assert set(re.findall(r"deploy/kubernetes/overlays/(\w+)", page)) == set(OVERLAYS)
