"""YAML text as a tree of nodes with their locations. Scalars stay the text that was written.

It works on the parser's events, not on its objects. So it sees tags, aliases and depth before anything is built, and a
file can neither name a Python type nor grow beyond its bounds. The conversions of YAML 1.1 (`off` is false, `0500` is
320, `1:30` is 90) do not apply, because the schema gives each value its type.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from paywitness.policy.reading.locations import FileProblems, SourceLocation, quoted

FILE_BYTES_MAX = 256 * 1024
_NODES_MAX = 20_000  # the largest shipped policy has under 1,000; counted after aliases are expanded
_DEPTH_MAX = 24  # the schema itself needs 7; an error shape under `problem` may be deeper
_KEY_LENGTH_MAX = 200

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_JSON_LITERAL = re.compile(r"(?:null|true|false|-?(?:0|[1-9][0-9]{0,17})(?:\.[0-9]{1,17})?)\Z")


@dataclass(frozen=True, slots=True)
class TextNode:
    """A scalar, as written. `plain`: without quotes, which matters only for free JSON."""

    location: SourceLocation
    text: str
    plain: bool = True
    size: int = 1
    height: int = 1


@dataclass(frozen=True, slots=True)
class ListNode:
    location: SourceLocation
    items: tuple[Node, ...]
    size: int
    height: int


@dataclass(frozen=True, slots=True)
class MapNode:
    location: SourceLocation
    entries: Mapping[str, Node]
    key_locations: Mapping[str, SourceLocation]
    size: int
    height: int


Node = TextNode | ListNode | MapNode


def list_node(location: SourceLocation, items: list[Node]) -> ListNode:
    return ListNode(
        location, tuple(items), 1 + sum(i.size for i in items), 1 + max((i.height for i in items), default=0)
    )


def map_node(
    location: SourceLocation, entries: Mapping[str, Node], key_locations: Mapping[str, SourceLocation]
) -> MapNode:
    size = 1 + sum(1 + node.size for node in entries.values())
    return MapNode(
        location, entries, key_locations, size, 1 + max((node.height for node in entries.values()), default=0)
    )


def read_document(content: bytes, file: str, problems: FileProblems) -> MapNode | None:
    """The file's mapping. None if it is not one YAML mapping; the reason is among the problems."""
    start = SourceLocation(file, 1, 1)
    if len(content) > FILE_BYTES_MAX:
        problems.add(
            start, "", f"found more than {FILE_BYTES_MAX} bytes, allowed: at most {FILE_BYTES_MAX // 1024} KiB"
        )
        return None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8", "replace")
        problems.add(_location_after(file, before), "", "found bytes that are not UTF-8, allowed: a YAML file in UTF-8")
        return None
    builder = _NodeBuilder(file)
    try:
        root = builder.build(text)
    except _InvalidYaml as invalid:
        problems.add(invalid.location, "", invalid.text)
        return None
    for location, path in builder.duplicates:
        problems.add(location, path, "found the same key twice in one mapping, allowed: once")
    if isinstance(root, MapNode):
        return root
    found = {TextNode: "a single value", ListNode: "a list"}.get(type(root), "nothing: the file is empty")
    problems.add(root.location if root else start, "", f"found {found}, allowed: a mapping such as 'provider: NAME'")
    return None


class _InvalidYaml(Exception):
    def __init__(self, location: SourceLocation, text: str) -> None:
        super().__init__(text)
        self.location = location
        self.text = text


@dataclass(slots=True)
class _OpenCollection:
    """A collection that is being read."""

    location: SourceLocation
    anchor: str | None
    is_map: bool
    items: list[Node] = field(default_factory=list)
    entries: dict[str, Node] = field(default_factory=dict)
    key_locations: dict[str, SourceLocation] = field(default_factory=dict)
    key: str | None = None

    def close(self) -> Node:
        return (
            map_node(self.location, self.entries, self.key_locations)
            if self.is_map
            else list_node(self.location, self.items)
        )


class _NodeBuilder:
    """Builds nodes from events, with a stack of its own, so that a deep file meets our bound and not the
    interpreter's."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.stack: list[_OpenCollection] = []
        self.anchors: dict[str, Node] = {}
        self.root: Node | None = None
        self.nodes = 0
        self.documents = 0
        self.duplicates: list[tuple[SourceLocation, str]] = []

    def build(self, text: str) -> Node | None:
        for event in self._events(text):
            location = SourceLocation(self.file, event.start_mark.line + 1, event.start_mark.column + 1)
            if isinstance(event, yaml.DocumentStartEvent):
                self.documents += 1
                if self.documents > 1:
                    raise _InvalidYaml(location, "found a second document ('---'), allowed: one document in a file")
            elif isinstance(event, yaml.AliasEvent):
                self._alias(location, event.anchor)
            elif isinstance(event, yaml.NodeEvent):
                self._node(location, event)
            elif isinstance(event, yaml.CollectionEndEvent):
                done = self.stack.pop()
                node = done.close()
                if done.anchor is not None:
                    self.anchors[done.anchor] = node
                self._attach(node, counted=1)
        return self.root

    def _events(self, text: str) -> Iterator[Any]:
        try:
            yield from yaml.parse(text, Loader=_LOADER)
        except yaml.reader.ReaderError as error:
            location = _location_after(self.file, text[: error.position])
            raise _InvalidYaml(location, "found a control character, allowed: printable text") from None
        except yaml.MarkedYAMLError as error:
            raise self._not_yaml(text, error) from None
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise _InvalidYaml(SourceLocation(self.file, 1, 1), f"this is not YAML: {type(error).__name__}") from None

    def _not_yaml(self, text: str, error: yaml.MarkedYAMLError) -> _InvalidYaml:
        at = error.problem_mark or error.context_mark
        location = SourceLocation(self.file, at.line + 1, at.column + 1) if at else SourceLocation(self.file, 1, 1)
        lines = text.splitlines()
        line = lines[location.line - 1] if location.line <= len(lines) else ""
        if line[location.column - 1 : location.column] == "\t" or line.startswith("\t"):
            return _InvalidYaml(location, "found a tab, allowed: spaces (YAML does not indent by tabs)")
        context = f" ({error.context})" if error.context else ""
        return _InvalidYaml(location, f"this is not YAML: {error.problem}{context}")

    def _alias(self, location: SourceLocation, anchor: str | None) -> None:
        node = self.anchors.get(anchor or "")
        if node is None:
            raise _InvalidYaml(
                location, f"found '*{anchor}', allowed: the name ('&{anchor}') of something complete above it"
            )
        self._attach(node, counted=node.size)

    def _node(self, location: SourceLocation, event: Any) -> None:
        if event.tag is not None and event.tag != "!":
            raise _InvalidYaml(location, f"found the tag {quoted(event.tag)}, allowed: plain values without tags")
        if isinstance(event, yaml.ScalarEvent):
            node = TextNode(location, event.value, plain=not event.style)
            if event.anchor is not None:
                self.anchors[event.anchor] = node
            self._attach(node, counted=1)
            return
        if len(self.stack) >= _DEPTH_MAX:
            raise _InvalidYaml(location, f"found more than {_DEPTH_MAX} levels, allowed: at most {_DEPTH_MAX}")
        self.stack.append(_OpenCollection(location, event.anchor, isinstance(event, yaml.MappingStartEvent)))

    def _attach(self, node: Node, counted: int) -> None:
        self.nodes += counted
        if self.nodes > _NODES_MAX:
            raise _InvalidYaml(
                node.location, f"found more than {_NODES_MAX} values (aliases count as often as they are used)"
            )
        if len(self.stack) + node.height > _DEPTH_MAX + 1:
            raise _InvalidYaml(node.location, f"found more than {_DEPTH_MAX} levels, allowed: at most {_DEPTH_MAX}")
        if not self.stack:
            self.root = node
            return
        parent = self.stack[-1]
        if not parent.is_map:
            parent.items.append(node)
        elif parent.key is None:
            parent.key = self._key(node, parent)
        else:
            parent.entries[parent.key] = node
            parent.key = None

    def _key(self, node: Node, parent: _OpenCollection) -> str:
        if not isinstance(node, TextNode):
            raise _InvalidYaml(node.location, "found a list or mapping as a key, allowed: a word")
        if node.text == "<<" and node.plain:
            raise _InvalidYaml(node.location, "found a merge key ('<<'), allowed: keys written out, or 'extends:'")
        if not node.text or len(node.text) > _KEY_LENGTH_MAX:
            raise _InvalidYaml(
                node.location, f"found a key of {len(node.text)} characters, allowed: 1 to {_KEY_LENGTH_MAX}"
            )
        if node.text in parent.entries:
            self.duplicates.append((node.location, self._path_to(node.text)))
        parent.key_locations[node.text] = node.location
        return node.text

    def _path_to(self, key: str) -> str:
        path = ""
        for opened in self.stack[:-1]:
            path += f".{opened.key}" if opened.is_map else f"[{len(opened.items)}]"
        return f"{path}.{key}".lstrip(".")


def _location_after(file: str, before: str) -> SourceLocation:
    lines = before.split("\n")
    return SourceLocation(file, len(lines), len(lines[-1]) + 1)


def json_value(node: Node) -> Any:
    """The node as free JSON. Unquoted null, true, false and numbers become such JSON values; everything else is
    text."""
    if isinstance(node, MapNode):
        return {key: json_value(child) for key, child in node.entries.items()}
    if isinstance(node, ListNode):
        return [json_value(item) for item in node.items]
    return json.loads(node.text) if node.plain and _JSON_LITERAL.match(node.text) else node.text


def canonical_text(node: Node, indent: str = "") -> str:
    """The node as JSON (which is YAML) that reads back as the same node. It does not depend on comments and layout."""
    deeper = indent + "  "
    if isinstance(node, MapNode):
        rows = [f"{deeper}{json.dumps(key)}: {canonical_text(child, deeper)}" for key, child in node.entries.items()]
        return "{\n" + ",\n".join(rows) + f"\n{indent}}}" if rows else "{}"
    if isinstance(node, ListNode):
        rows = [deeper + canonical_text(item, deeper) for item in node.items]
        return "[\n" + ",\n".join(rows) + f"\n{indent}]" if rows else "[]"
    return node.text if node.plain and _JSON_LITERAL.match(node.text) else json.dumps(node.text)
