"""Shipped policies and `extends`: a user's file on top of one of ours.

Mappings merge; the rows of `classify` and `answers` go in front of ours, for the first match wins; a code that the user
puts into a table leaves the bucket we had it in. Every other list or value replaces ours.
"""

from __future__ import annotations

from pathlib import Path

from paywitness.policy.reading.document import ListNode, MapNode, Node, TextNode, list_node, map_node, read_document
from paywitness.policy.reading.locations import FileProblems, did_you_mean, listed, quoted

_PREFIX = "paywitness:"
_PACKAGE = Path(__file__).resolve().parent.parent
_CHECKOUT = _PACKAGE.parent.parent


def shipped_directory() -> Path:
    """Where the shipped policies are: inside the installed package, or at the top of the source tree.

    Both are found from this file's own path. An editable install leaves an old copy in site-packages: nobody reads it.
    """
    installed = _PACKAGE / "policies"
    return installed if installed.is_dir() else _CHECKOUT / "policies"


def shipped_names() -> list[str]:
    return sorted(path.stem for path in shipped_directory().glob("*.yaml"))


def resolve_extends(document: MapNode, problems: FileProblems) -> MapNode | None:
    """The document with what it extends merged under it; itself where it extends nothing."""
    node = document.entries.get("extends")
    if node is None:
        return document
    names = [_PREFIX + name for name in shipped_names()]
    wanted = node.text if isinstance(node, TextNode) else "a list or mapping"
    if wanted not in names:
        found = f"found {quoted(wanted)}, allowed: {listed(names)}{did_you_mean(wanted, names)}"
        problems.add(node.location, "extends", found)
        return None
    path = shipped_directory() / f"{wanted.removeprefix(_PREFIX)}.yaml"
    base = read_document(path.read_bytes(), wanted, problems)
    if base is None:
        return None
    if "extends" in base.entries:
        problems.add(base.key_locations["extends"], "extends", "found in a shipped policy, allowed: in yours only")
        return None
    entries = {key: child for key, child in document.entries.items() if key != "extends"}
    return merge(base, map_node(document.location, entries, document.key_locations), ())


def merge(base: MapNode, override: MapNode, path: tuple[str, ...]) -> MapNode:
    """The mapping with the user's entries on top of ours."""
    entries = dict(base.entries)
    for key, node in override.entries.items():
        ours = entries.get(key)
        where = (*path, key)
        if isinstance(ours, MapNode) and isinstance(node, MapNode):
            entries[key] = _merge_table(ours, node) if _is_table(where) else merge(ours, node, where)
        elif isinstance(ours, ListNode) and isinstance(node, ListNode) and _are_rows(where):
            entries[key] = list_node(node.location, [*node.items, *ours.items])
        else:
            entries[key] = node
    return map_node(override.location, entries, {**base.key_locations, **override.key_locations})


def _are_rows(path: tuple[str, ...]) -> bool:
    return path == ("classify",) or (len(path) == 2 and path[0] == "answers")


def _is_table(path: tuple[str, ...]) -> bool:
    return path == ("advice",) or (len(path) == 2 and path[0] == "tables")


def _merge_table(base: MapNode, override: MapNode) -> MapNode:
    """The user's codes stand where the user put them; ours lose the ones that moved."""
    moved = {code for node in override.entries.values() for code in _codes(node)}
    entries: dict[str, Node] = {}
    for bucket, node in base.entries.items():
        kept = [item for item in _items(node) if not (isinstance(item, TextNode) and item.text in moved)]
        theirs = override.entries.get(bucket)
        entries[bucket] = list_node(node.location, [*(_items(theirs) if theirs is not None else ()), *kept])
    for bucket, node in override.entries.items():
        if bucket not in entries or not isinstance(node, ListNode):
            entries[bucket] = node
    return map_node(override.location, entries, {**base.key_locations, **override.key_locations})


def _items(node: Node) -> tuple[Node, ...]:
    return node.items if isinstance(node, ListNode) else ()


def _codes(node: Node) -> list[str]:
    return [item.text for item in _items(node) if isinstance(item, TextNode)]
