"""The part of Kustomize that deploy/kubernetes uses, so that what it renders can be looked at without kubectl.

No package index has Kustomize in a version that knows components. What is not known here is refused, never passed
over; and where kubectl is installed the tests hold the two against each other.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml

Resource = dict[str, Any]

_KNOWN = {"apiVersion", "kind", "namespace", "resources", "components", "patches", "images"}
_KNOWN |= {"configMapGenerator", "generatorOptions"}
# By which field two elements of a list are the same: Kubernetes' own merge keys. Other lists are replaced.
_MERGED_BY = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "volumeMounts": "mountPath",
}


def render(folder: Path) -> list[Resource]:
    """Every resource of a kustomization, as `kubectl kustomize` would print them."""
    return _built(folder, [])


def _built(folder: Path, given: list[Resource]) -> list[Resource]:
    """`given`: what a component is put over."""
    said = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert set(said) <= _KNOWN, f"{folder}: {set(said) - _KNOWN} is not known here"
    resources = list(given)
    for name in said.get("resources", []):
        path = folder / name
        resources += _built(path, []) if path.is_dir() else list(yaml.safe_load_all(path.read_text()))
    resources += _config_maps(folder, said)
    for name in said.get("components", []):
        resources = _built(folder / name, resources)
    for patch in said.get("patches", []):
        _put_over(resources, yaml.safe_load((folder / patch["path"]).read_text()), patch.get("target"))
    for one in resources:
        if "namespace" in said:
            one["metadata"]["namespace"] = said["namespace"]
        for image in said.get("images", []):
            _rename(one, image)
    return resources


def _config_maps(folder: Path, said: Resource) -> list[Resource]:
    makers = said.get("configMapGenerator", [])
    assert not makers or said["generatorOptions"] == {"disableNameSuffixHash": True}
    made = []
    for maker in makers:
        assert set(maker) <= {"name", "files", "envs"}
        data = {Path(name).name: (folder / name).read_text() for name in maker.get("files", [])}
        for name in maker.get("envs", []):
            lines = (line.strip() for line in (folder / name).read_text().splitlines())
            data |= dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
        made.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": maker["name"]}, "data": data})
    return made


def _put_over(resources: list[Resource], patch: Resource, target: Resource | None) -> None:
    matched = [one for one in resources if _is_meant(one, patch, target)]
    assert matched or target is not None, f"nothing is patched by {patch['metadata']['name']}"
    changes = copy.deepcopy(patch)
    if target is not None:  # whatever it is called there
        changes["metadata"].pop("name", None)
    for one in matched:
        one.update(_merged(one, changes))


def _is_meant(one: Resource, patch: Resource, target: Resource | None) -> bool:
    if target is None:
        named = [(each["kind"], each["metadata"]["name"]) for each in (one, patch)]
        return named[0] == named[1]
    assert set(target) <= {"kind", "labelSelector"}
    name, _, value = target["labelSelector"].partition("=")
    return bool(one["kind"] == target["kind"] and one["metadata"].get("labels", {}).get(name) == value)


def _merged(before: Any, patch: Any, place: str = "") -> Any:
    if isinstance(before, dict) and isinstance(patch, dict):
        both = {name: _merged(before.get(name), value, name) for name, value in patch.items() if value is not None}
        kept = {name: value for name, value in before.items() if name not in patch}
        return copy.deepcopy(kept) | both
    key = _MERGED_BY.get(place)
    if not isinstance(patch, list) or key is None:
        assert "$patch" not in str(patch)
        return copy.deepcopy(patch)
    before = before or []
    wanted = {one[key]: one for one in patch}
    deleted = {name for name, one in wanted.items() if one.get("$patch") == "delete"}
    fresh = [one for one in patch if one[key] not in deleted and one[key] not in {old[key] for old in before}]
    older = [_merged(one, wanted.get(one[key], {})) for one in before if one[key] not in deleted]
    return [_merged({}, one) for one in fresh] + older  # what is new comes first


def _rename(node: Any, image: Resource) -> None:
    if isinstance(node, dict):
        name = str(node.get("image", "")).partition(":")[0]
        if name == image["name"]:
            node["image"] = f"{image['newName']}:{image['newTag']}"
        for value in node.values():
            _rename(value, image)
    elif isinstance(node, list):
        for value in node:
            _rename(value, image)
