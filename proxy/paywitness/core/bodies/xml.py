"""XML bodies: read into the same kind of tree as JSON and forms, and single values written into them by a splice.

The tree of a document:
- `{root: ...}`. An element with elements inside is an object, one with text is a text, an empty one is null. Repeated
  elements are a list. Names lose their namespace, and have `_` for `-`, because Braintree treats both spellings alike.
- `type="array"`, `"integer"`, `"boolean"` and `nil="true"` give the type of a value, and are no part of it. Any other
  attribute becomes `@name` beside `#text`, or beside the `#items` of an array. So does an unknown type, because two
  prices that differ only by it are two prices.

A document that two readers could read in two ways is refused: a document type and its entities, text among elements,
text that a comment cuts in two, a value twice among others, a byte order that would have to be guessed. expat parses.
"""

from __future__ import annotations

import html
import re
from dataclasses import dataclass, field
from typing import Any
from xml.parsers import expat

from paywitness.core.bodies.bounds import DEPTH_MAX, REQUEST_BOUNDS, BodyBounds, check_xml, too_many_elements
from paywitness.core.errors import BodyError, BodyOverBound

_ENCODINGS = frozenset({"utf-8", "us-ascii", "iso-8859-1"})  # those in which ASCII bytes mean ASCII
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_SPACE = " \t\r\n"
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
_KINDS = frozenset({"", "string", "symbol", "integer", "boolean", "decimal", "float", "double", "date", "datetime"})
_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # XML 1.0, section 2.2
_TIME = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")
_XSI_NIL = "http://www.w3.org/2001/XMLSchema-instance nil"


def decode_xml(body: bytes, bounds: BodyBounds = REQUEST_BOUNDS) -> dict[str, Any]:
    """The document as a tree. Raises BodyError if it cannot be read, or can be read in two ways."""
    check_xml(body, bounds)
    if b"\0" in body:
        raise BodyError("the body is XML in another encoding than UTF-8")
    reader = _TreeBuilder(bounds, marked=body.startswith(_BYTE_ORDER_MARK))
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True
    parser.XmlDeclHandler = reader.declaration
    parser.StartDoctypeDeclHandler = _refuse_doctype
    parser.StartNamespaceDeclHandler = reader.namespace
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.text
    parser.StartCdataSectionHandler = parser.EndCdataSectionHandler = reader.edge
    parser.CommentHandler = parser.ProcessingInstructionHandler = reader.interrupt
    _parse(parser, body)
    return reader.root


def _parse(parser: expat.XMLParserType, body: bytes) -> None:
    try:
        parser.Parse(body, True)
    except expat.ExpatError as error:
        said = expat.ErrorString(error.code)
        raise BodyError(f"the body is not XML: {said} at line {error.lineno} column {error.offset + 1}") from None
    except (ValueError, LookupError):  # a declared encoding that Python does not know, or not so
        raise BodyError("the body is XML in an encoding that cannot be read") from None


def _refuse_doctype(*_: object) -> None:
    raise BodyError("the body has a document type, and so perhaps entities")


def name_in_tree(name: str) -> str:
    return name.rpartition(" ")[2].replace("-", "_")


@dataclass(slots=True)
class _Element:
    """An element whose end tag has not come yet."""

    name: str
    kind: str = ""  # its `type`
    nil: bool = False
    attributes: dict[str, Any] = field(default_factory=dict)
    children: list[tuple[str, Any]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    interrupted: bool = False  # by a comment or an instruction
    edges: int = 0  # of CDATA sections
    outside: bool = False  # whether text stands outside of them


class _TreeBuilder:
    """Expat's events, made into a tree."""

    def __init__(self, bounds: BodyBounds, *, marked: bool) -> None:
        self.root: dict[str, Any] = {}
        self._bounds = bounds  # on elements, attributes and what else costs time
        self._marked = marked  # as UTF-8
        self._open: list[_Element] = []
        self._nodes = 0

    def declaration(self, version: str, encoding: str | None, _standalone: int) -> None:
        if version != "1.0":
            raise BodyError("the body is XML of another version than 1.0")
        declared = (encoding or "utf-8").lower()
        if declared not in _ENCODINGS or (self._marked and declared != "utf-8"):
            raise BodyError("the body is XML in another encoding than UTF-8")

    def count(self, more: int = 1) -> None:
        self._nodes += more
        if self._nodes > self._bounds.elements_max:
            raise too_many_elements(self._bounds)

    def namespace(self, *_: object) -> None:
        self.count()

    def start(self, name: str, attributes: dict[str, str]) -> None:
        self.count(1 + len(attributes))
        if len(self._open) >= DEPTH_MAX:
            raise BodyOverBound("the body is nested too deeply")
        element = _Element(name_in_tree(name))
        if not self._open and element.name.lower() == "html":
            raise BodyError("the body is a web page")  # a gateway's, perhaps; no provider's answer
        for key, value in attributes.items():
            if key == "type":
                element.kind = value.lower()
            elif key in {"nil", _XSI_NIL}:
                element.nil = _BOOLEANS.get(value, False)
            elif f"@{name_in_tree(key)}" in element.attributes:
                raise BodyError("an element of the body has the same attribute twice")
            else:
                element.attributes[f"@{name_in_tree(key)}"] = value
        self._open.append(element)

    def text(self, text: str) -> None:
        element = self._open[-1]
        element.texts.append(text)
        if element.edges % 2 == 0 and not element.outside:
            element.outside = bool(text.strip(_SPACE))

    def edge(self) -> None:
        self.count()
        self._open[-1].edges += 1

    def interrupt(self, *_: object) -> None:
        self.count()
        if self._open:
            self._open[-1].interrupted = True

    def end(self, _name: str) -> None:
        element = self._open.pop()
        value = _value_of(element)
        if self._open:
            self._open[-1].children.append((element.name, value))
        else:
            self.root = {element.name: value}


def _value_of(element: _Element) -> Any:
    text = "".join(element.texts)
    if not text.strip(_SPACE):
        text = ""  # layout
    elif element.children or element.nil or element.kind == "array":
        raise BodyError("an element of the body has a text where none can be")
    elif element.interrupted or element.edges > 2 or (element.edges and element.outside):
        # Some readers take the first piece for the whole text. An amount of 1 for us could be 10 for the provider.
        raise BodyError("a text in the body is in pieces")
    if element.kind == "array":
        items = [value for _, value in element.children]
        return {**element.attributes, "#items": items} if element.attributes else items
    if element.children:
        return _object_of(element)
    value = _typed(text, element.kind)
    if value is not None and element.kind not in _KINDS:
        element.attributes["@type"] = element.kind
    if not element.attributes:
        return value
    return {**element.attributes, **({"#text": value} if value is not None else {})}


def _typed(text: str, kind: str) -> Any:
    if not text:
        return None
    if kind == "integer" and text.isascii() and text.removeprefix("-").isdigit() and len(text) <= 18:
        return int(text)
    if kind == "boolean" and text in _BOOLEANS:
        return _BOOLEANS[text]
    return text


def _object_of(element: _Element) -> dict[str, Any]:
    found: dict[str, list[Any]] = {}
    for name, value in element.children:
        found.setdefault(name, []).append(value)
    for values in found.values():
        if len(values) > 1 and len(found) > 1 and not all(isinstance(value, (dict, list)) for value in values):
            # One of them is the provider's amount, and we cannot know which.
            raise BodyError("an element of the body has the same value twice")
    kind = {"@type": element.kind} if element.kind else {}
    return element.attributes | kind | {name: each[0] if len(each) == 1 else each for name, each in found.items()}


# --- Writing


@dataclass(slots=True)
class _ElementSpan:
    """The position of an element, in bytes. An empty one (`<a/>`) has no end tag."""

    starts: int
    name: str  # as it is written, prefix and all
    plain: bool  # no `type` or `nil` contradicts a text in it
    inside: int = -1  # the start of its content
    ends: int = -1  # the end of its content


class _ElementFinder:
    """Follows the names down the document, and notes the position of each element on the way."""

    def __init__(self, keys: list[str]) -> None:
        self.found: list[_ElementSpan] = []
        self._keys = keys
        self._depth = 0
        self._begun: _ElementSpan | None = None  # its start tag ends at the beginning of the next node
        self.parser = expat.ParserCreate()
        self.parser.buffer_text = False
        for handler in ("CharacterData", "Comment", "ProcessingInstruction", "StartCdataSection"):
            setattr(self.parser, f"{handler}Handler", self._end_start_tag)
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end

    def _end_start_tag(self, *_: object) -> None:
        if self._begun is not None:
            self._begun.inside = self.parser.CurrentByteIndex
            self._begun = None

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._end_start_tag()
        on_the_way = self._depth == len(self.found) < len(self._keys)
        if on_the_way and name_in_tree(name.rpartition(":")[2]) == self._keys[self._depth]:
            plain = not any(key.rpartition(":")[2] in {"type", "nil"} for key in attributes)
            self._begun = _ElementSpan(self.parser.CurrentByteIndex, name, plain)
            self.found.append(self._begun)
        self._depth += 1

    def _end(self, _name: str) -> None:
        self._end_start_tag()
        self._depth -= 1
        if self._depth < len(self.found) and self.found[self._depth].ends < 0:
            self.found[self._depth].ends = self.parser.CurrentByteIndex


def splice_xml(body: bytes, keys: list[str], value: str) -> bytes:
    """The document with a text under the names. It replaces the text there, or is added at the end of the last element
    on the way. Raises BodyError if the text would not be read back as written, or if anything else would change."""
    if not body.strip():
        return _element(keys, value)
    before = decode_xml(body)
    finder = _ElementFinder(keys)
    _parse(finder.parser, body)
    if not finder.found:
        raise BodyError(f"the body's root is not {keys[0]}")
    span = finder.found[-1]
    if not span.plain:
        raise BodyError("an element on the way to the body's key says that it is of another type")
    prefix = span.name.rpartition(":")[0]
    missing = [f"{prefix}:{key}" if prefix else key for key in keys[len(finder.found) :]]
    written = _element(missing, value)
    if body[span.inside - 2 : span.inside] == b"/>":
        tag = body[span.starts : span.inside - 2].rstrip()
        name = span.name.encode()
        after = body[: span.starts] + tag + b">" + written + b"</" + name + b">" + body[span.inside :]
    elif missing:
        after = body[: span.ends] + written + body[span.ends :]
    else:
        after = body[: span.inside] + written + body[span.ends :]
    if decode_xml(after) != _tree_with(before, keys, value):
        raise BodyError("the body cannot be written into without changing more than its key")
    return after


def _tree_with(tree: Any, keys: list[str], value: str) -> Any:
    if not keys and not isinstance(tree, (dict, list)):
        return value
    if tree is None:
        tree = {}
    if not keys or not isinstance(tree, dict):
        raise BodyError("something else stands where the body's key should")
    return {**tree, keys[0]: _tree_with(tree.get(keys[0]), keys[1:], value)}


def _element(names: list[str], value: str) -> bytes:
    """The value inside the elements, in ASCII, which is right in every encoding that we read."""
    written = _escaped(value)
    for name in reversed(names):
        tag = name.encode()
        written = b"<" + tag + b">" + written + b"</" + tag + b">"
    return written


def _escaped(text: str) -> bytes:
    if _ILLEGAL.search(text):
        raise BodyError("a text has characters that cannot stand in XML")
    return html.escape(text).encode("ascii", "xmlcharrefreplace").replace(b"\r", b"&#13;")


def encode_xml(tree: Any, *, typed: bool = False) -> bytes:
    """A document of our own. The tree is an object with one member, its root; `@name` is an attribute. `typed`: the
    tree came from a document with types, so numbers, times and nulls get their types again. Raises BodyError."""
    if not isinstance(tree, dict) or len(tree) != 1:
        raise BodyError("a document has one root")
    [(root, value)] = tree.items()
    return b'<?xml version="1.0" encoding="UTF-8"?>' + _encoded_element(root, value, typed=typed)


def _encoded_element(name: str, value: Any, *, typed: bool) -> bytes:
    attributes: dict[str, Any] = {}
    if isinstance(value, dict):
        attributes = {key[1:]: text for key, text in value.items() if key.startswith("@")}
        attributes |= {"type": "array"} if "#items" in value else {}
        children = [(key, child) for key, child in value.items() if not key.startswith(("@", "#"))]
        children += [("item", child) for child in value.get("#items", ())]
        inner = b"".join(_encoded_element(key, child, typed=typed) for key, child in children) + _text_of(value)
    elif isinstance(value, list):
        attributes = {"type": "array"}
        inner = b"".join(_encoded_element("item", child, typed=typed) for child in value)
    else:
        kind = _kind_of(value) if typed or isinstance(value, bool) else ""
        attributes = {"nil": "true"} if kind == "nil" else {"type": kind} if kind else {}
        inner = _escaped("" if value is None else str(value).lower() if isinstance(value, bool) else str(value))
    tag = name.encode()
    said = b"".join(b" " + key.encode() + b'="' + _escaped(str(text)) + b'"' for key, text in attributes.items())
    return b"<" + tag + said + b">" + inner + b"</" + tag + b">"


def _text_of(value: dict[str, Any]) -> bytes:
    return _escaped(str(value.get("#text", "")))


def _kind_of(value: Any) -> str:
    if value is None or isinstance(value, (bool, int)):
        return "nil" if value is None else "boolean" if isinstance(value, bool) else "integer"
    return "datetime" if isinstance(value, str) and _TIME.fullmatch(value) else ""
