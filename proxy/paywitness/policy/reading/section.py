"""A mapping of the file while it is being read. It gives typed values, and adds problems with their location to the
list."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

from paywitness.policy.reading.document import ListNode, MapNode, Node, TextNode
from paywitness.policy.reading.locations import FileProblems, SourceLocation, did_you_mean, listed, quoted
from paywitness.policy.reading.value_readers import InvalidValue, Reader, header_name, header_value
from paywitness.policy.schema import Block

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SectionEntry:
    """A key of a mapping whose keys are the author's own: an operation, a table, a header."""

    name: str
    path: str
    location: SourceLocation
    node: Node


class Section:
    """One block of the file. A value that cannot be read is reported, and the default is given instead."""

    def __init__(self, node: MapNode, path: str, block: Block, problems: FileProblems) -> None:
        self.location = node.location
        self.path = path
        self.block = block
        self.problems = problems
        self._node = node
        for key in node.entries:
            if key not in block.keys:
                problems.add(
                    node.key_locations[key],
                    self.key_path(key),
                    f"found an unknown key, allowed here: {listed(block.keys)}{did_you_mean(key, block.keys)}",
                )
        for key in block.required:
            if key not in node.entries:
                problems.add(self.location, self.key_path(key), f"found nothing, it is required: {block.keys[key]}")

    def key_path(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def has(self, key: str) -> bool:
        if key not in self.block.keys:
            raise KeyError(f"{key} is not in the schema of {self.block.title}")
        return key in self._node.entries

    def key_location(self, key: str) -> SourceLocation:
        return self._node.key_locations.get(key, self.location)

    def value_location(self, key: str) -> SourceLocation:
        node = self._node.entries.get(key)
        return node.location if node is not None else self.location

    def node(self, key: str) -> Node | None:
        return self._node.entries[key] if self.has(key) else None

    def add_problem(self, key: str, text: str, *, operation: str = "") -> None:
        """Report a problem with the value under the key."""
        self.problems.add(self.value_location(key), self.key_path(key), text, operation=operation)

    def add_warning(self, key: str, text: str, *, operation: str = "") -> None:
        self.problems.warn(self.value_location(key), self.key_path(key), text, operation=operation)

    def read(self, key: str, reader: Reader[T]) -> T | None:
        node = self.node(key)
        return (
            None if node is None else read_text(node, self.key_path(key), self.block.keys[key], reader, self.problems)
        )

    def read_or(self, key: str, reader: Reader[T], default: T) -> T:
        found = self.read(key, reader)
        return default if found is None else found

    def read_list(self, key: str, reader: Reader[T], *, single: bool = False) -> tuple[T, ...]:
        """The values of a list; with `single`, one value alone counts as a list of it."""
        node = self.node(key)
        if node is None:
            return ()
        if single and isinstance(node, TextNode):
            found = read_text(node, self.key_path(key), self.block.keys[key], reader, self.problems)
            return () if found is None else (found,)
        values = []
        for entry in self._items(key):
            found = read_text(entry.node, entry.path, "a single value", reader, self.problems)
            if found is not None:
                values.append(found)
        return tuple(values)

    def child(self, key: str, block: Block) -> Section | None:
        node = self.node(key)
        if node is None:
            return None
        if not isinstance(node, MapNode):
            self.add_problem(key, _unexpected_node_message(node, f"a mapping with {listed(block.keys)}"))
            return None
        return Section(node, self.key_path(key), block, self.problems)

    def children(self, key: str, block: Block) -> list[Section]:
        """The mappings of a list."""
        found = []
        for entry in self._items(key):
            if isinstance(entry.node, MapNode):
                found.append(Section(entry.node, entry.path, block, self.problems))
            else:
                self.problems.add(
                    entry.location,
                    entry.path,
                    _unexpected_node_message(entry.node, f"a mapping with {listed(block.keys)}"),
                )
        return found

    def entries(self, key: str) -> list[SectionEntry]:
        """The entries of a mapping whose keys are the author's own."""
        node = self.node(key)
        if node is None:
            return []
        if not isinstance(node, MapNode):
            self.add_problem(key, _unexpected_node_message(node, self.block.keys[key]))
            return []
        return list(entries_of(node, self.key_path(key)))

    def headers(self, key: str) -> list[tuple[SectionEntry, str]]:
        """The entries of a mapping from header names to values, each with its value."""
        found = []
        for entry in self.entries(key):
            try:
                header_name(entry.name)
            except InvalidValue as invalid:
                self.problems.add(entry.location, entry.path, invalid_value_message(entry.name, invalid))
                continue
            value = read_text(entry.node, entry.path, "the header's value", header_value, self.problems)
            if value is not None:
                found.append((entry, value))
        return found

    def _items(self, key: str) -> list[SectionEntry]:
        node = self.node(key)
        if node is None:
            return []
        if not isinstance(node, ListNode):
            self.add_problem(key, _unexpected_node_message(node, "a list"))
            return []
        if not node.items:
            self.add_problem(key, "found an empty list, allowed: at least one value, or leave the key out")
        return [
            SectionEntry(str(i), f"{self.key_path(key)}[{i}]", item.location, item) for i, item in enumerate(node.items)
        ]


class Layers:
    """The same block given at several levels, the nearest first: an operation's, then its provider's."""

    def __init__(self, *sections: Section | None) -> None:
        self.sections = tuple(section for section in sections if section is not None)

    def having(self, key: str) -> Section | None:
        """The nearest section that gives the key."""
        return next((section for section in self.sections if section.has(key)), None)

    def read(self, key: str, reader: Reader[T]) -> T | None:
        section = self.having(key)
        return section.read(key, reader) if section is not None else None

    def read_or(self, key: str, reader: Reader[T], default: T) -> T:
        found = self.read(key, reader)
        return default if found is None else found

    def read_list(self, key: str, reader: Reader[T]) -> tuple[T, ...]:
        section = self.having(key)
        return section.read_list(key, reader) if section is not None else ()

    def add_problem(self, key: str, text: str, *, operation: str = "") -> None:
        section = self.having(key)
        if section is not None:
            section.add_problem(key, text, operation=operation)


def entries_of(node: MapNode, path: str) -> Iterator[SectionEntry]:
    for name, child in node.entries.items():
        yield SectionEntry(name, f"{path}.{name}", node.key_locations[name], child)


def section_of(entry: SectionEntry, block: Block, problems: FileProblems) -> Section | None:
    """The entry's value as a block."""
    if not isinstance(entry.node, MapNode):
        problems.add(
            entry.node.location,
            entry.path,
            _unexpected_node_message(entry.node, f"a mapping with {listed(block.keys)}"),
        )
        return None
    return Section(entry.node, entry.path, block, problems)


def rows_of(node: Node, path: str, block: Block, problems: FileProblems) -> list[Section]:
    """A node that must be a list of mappings."""
    if not isinstance(node, ListNode):
        problems.add(node.location, path, _unexpected_node_message(node, "a list of rows"))
        return []
    found = []
    for index, item in enumerate(node.items):
        section = section_of(SectionEntry(str(index), f"{path}[{index}]", item.location, item), block, problems)
        if section is not None:
            found.append(section)
    return found


def read_text(node: Node, path: str, allowed: str, reader: Reader[T], problems: FileProblems) -> T | None:
    """The value of a scalar, or None with the problem reported."""
    if not isinstance(node, TextNode):
        problems.add(node.location, path, _unexpected_node_message(node, allowed))
        return None
    if node.text == "" and node.plain:
        problems.add(node.location, path, f"found nothing, allowed: {allowed}")
        return None
    try:
        return reader(node.text)
    except InvalidValue as invalid:
        problems.add(node.location, path, invalid_value_message(node.text, invalid))
        return None


def invalid_value_message(found: str, invalid: InvalidValue) -> str:
    if invalid.message:
        return invalid.message + invalid.hint
    value = "a literal value (not shown)" if invalid.secret else quoted(found)
    return f"found {value}, allowed: {invalid.allowed}{invalid.hint}"


def _unexpected_node_message(node: Node, allowed: str) -> str:
    if isinstance(node, TextNode):
        what = quoted(node.text) if node.text else "nothing"
    else:
        what = "a list" if isinstance(node, ListNode) else "a mapping"
    return f"found {what}, allowed: {allowed}"
