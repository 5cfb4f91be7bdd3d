"""A draft from an OpenAPI file: its POST operations that look as if they moved money.

Every guess stands in the draft with its VERIFY, so that a person checks it. A wrong guess must be harmless until then,
so facts that cannot be guessed safely are left out, and calls that are left out are listed. References outside the file
are not followed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

import yaml

from paywitness.core.provider_contract import OperationKind
from paywitness.core.result import ResultClass
from paywitness.tools.policy_new.draft import PAID_STATUSES, Draft, DraftOperation

FILE_BYTES_MAX = 20 * 1024 * 1024  # the largest published one has about 7 MiB
_DEPTH_MAX = 6
_NESTING_MAX = 200
_FIELDS_MAX = 2_000
_LEFT_OUT_MAX = 40
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Tree = Any

_KEY_HEADER = re.compile(r"idempoten|^(x-|paypal-)?request-?id$|^cko-idem", re.IGNORECASE)
# Tried on the last segments of the path first, then on the operation's own name: /payments/{id}/refunds is a refund.
_KINDS = (
    (OperationKind.REFUND, re.compile(r"refund")),
    (OperationKind.CAPTURE, re.compile(r"captur")),
    (OperationKind.VOID, re.compile(r"void|cancel|revers")),
    (OperationKind.PAYOUT, re.compile(r"payout|transfer|disburse|withdraw")),
    (OperationKind.AUTHORIZATION, re.compile(r"authori[sz]ation|authori[sz]e|hold")),
    (OperationKind.SALE, re.compile(r"payment|charge|\bpay\b|sale|purchase|transaction|checkout|debit")),
)
_READ_ONLY = re.compile(r"search|list|query|webhook|method|token|link|session|customer|estimate|quote|preview")
_AMOUNT_FIELDS = ("amount", "amount.value", "amount.amount", "amount_money.amount", "total", "total_amount", "value")
_CURRENCY_FIELDS = ("currency", "amount.currency", "amount.currency_code", "amount_money.currency", "currency_code")
_ORDER_FIELDS = ("order_id", "orderId", "metadata.order_id", "merchant_reference", "reference_id")
_STATUS_FIELDS = ("status", "state", "resultCode", "result.status")
# Statuses whose meaning is clear, by kind. The response to a refund is often the payment, whose "paid" says nothing
# about the refund. For such kinds only unambiguous statuses count. A person must classify the others.
_PAYMENT_STATUSES = {
    ResultClass.SUCCEEDED: "succeeded success paid captured completed complete settled authorized authorised approved",
    ResultClass.PENDING: "pending processing in_progress",
    ResultClass.REQUIRES_ACTION: "requires_action action_required",
    ResultClass.FAILED: "failed declined refused rejected",
    ResultClass.CANCELLED: "canceled cancelled voided expired",
}
_STATUSES_BY_KIND: dict[OperationKind, dict[ResultClass, str]] = {
    OperationKind.SALE: _PAYMENT_STATUSES,
    OperationKind.AUTHORIZATION: _PAYMENT_STATUSES,
    OperationKind.CAPTURE: {ResultClass.SUCCEEDED: "captured"},
    OperationKind.VOID: {ResultClass.SUCCEEDED: "voided canceled cancelled reversed"},
    OperationKind.REFUND: {ResultClass.SUCCEEDED: "refunded"},
    OperationKind.PAYOUT: {
        ResultClass.SUCCEEDED: "paid succeeded success completed sent",
        ResultClass.PENDING: "pending in_transit",
    },
}


class NotOpenApi(Exception):
    """The file cannot be used. The message is the reason."""


def read_openapi(content: bytes) -> Tree:
    """Parse the document, JSON or YAML."""
    if len(content) > FILE_BYTES_MAX:
        raise NotOpenApi(f"it has more than {FILE_BYTES_MAX // 1024 // 1024} MiB")
    try:
        text = content.decode("utf-8-sig")
        document = json.loads(text) if text.lstrip().startswith("{") else _yaml(text)
    except UnicodeDecodeError:
        raise NotOpenApi("it is not UTF-8") from None
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        location = getattr(error, "problem_mark", None)
        where = f" (line {location.line + 1})" if location is not None else ""
        raise NotOpenApi(f"it is neither JSON nor YAML{where}") from None
    if not isinstance(document, dict) or not isinstance(document.get("paths"), dict):
        raise NotOpenApi("it has no 'paths': give an OpenAPI (or Swagger) description")
    return document


def _yaml(text: str) -> Tree:
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        # The parser takes any depth. The constructor is written in C, and deep nesting would crash the process.
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _NESTING_MAX:
            raise NotOpenApi(f"it is nested more than {_NESTING_MAX} levels deep")
    return yaml.load(text, Loader=_LOADER)  # noqa: S506  # the safe loader, or its twin in C: plain values only


def draft_from(document: Tree, *, provider: str = "", upstream: str = "", key: str = "", origin: str = "") -> Draft:
    """A draft of the calls that look as if they moved money. Given values win over found ones; `key` may be `none`."""
    found: list[DraftOperation] = []
    left_out: list[str] = []
    headers: list[str] = []
    prefix = _prefix(document)
    for path, method, item in _calls(document):
        match = _match(prefix + path)
        kind = _kind(path, item) if method == "POST" else None
        if kind is None or match is None:
            if method != "GET":
                left_out.append(f"{method} {path}" + ("" if match else " (a path that no policy can match)"))
            continue
        headers += _key_headers(document, item)
        found.append(_operation(document, item, kind, match, {operation.name for operation in found}, prefix))
    if not found:
        raise NotOpenApi(
            "none of its POST operations looks as if it moved money; name them with --pay, --refund and so on"
        )
    title = str(_map(document.get("info")).get("title") or "")
    more = [f"and {len(left_out) - _LEFT_OUT_MAX} more"] if len(left_out) > _LEFT_OUT_MAX else []
    return Draft(
        provider=provider or _name(title) or "provider",
        upstream=upstream or _server(document) or "https://api.example.com",
        operations=tuple(sorted(found, key=_literal_first)),
        body=_encoding(document),
        key="" if key == "none" else key or (f"header:{headers[0]}" if headers else ""),
        left_out=(*left_out[:_LEFT_OUT_MAX], *more),
        origin=origin,
    )


def _literal_first(operation: DraftOperation) -> list[bool]:
    """A sort key: /v1/payments/batch comes before /v1/payments/{id}, which would match its calls."""
    return [segment.startswith("{") for segment in operation.match.split("/")]


def _calls(document: Tree) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, item in _map(methods).items():
            if str(method).lower() in {"get", "post", "put", "patch", "delete"} and isinstance(item, dict):
                parameters = [*_list(item.get("parameters")), *_list(methods.get("parameters"))]
                yield str(path), str(method).upper(), {**item, "parameters": parameters}


def _kind(path: str, item: dict[str, Any]) -> OperationKind | None:
    words = [segment for segment in path.lower().split("/") if segment and not segment.startswith("{")]
    last = re.sub(r"[_-]", " ", words[-1]) if words else ""
    if _READ_ONLY.search(last):
        return None
    texts = [last, re.sub(r"(?<!^)(?=[A-Z])|[_-]", " ", str(item.get("operationId") or "")).lower()]
    return next((kind for text in texts for kind, pattern in _KINDS if pattern.search(text)), None)


def _operation(
    document: Tree, item: dict[str, Any], kind: OperationKind, match: str, taken: set[str], prefix: str
) -> DraftOperation:
    request_schema = _schema_of(document, item.get("requestBody"), item["parameters"])
    fields = dict(islice(_fields(document, request_schema), _FIELDS_MAX))
    amount = next((name for name in _AMOUNT_FIELDS if name in fields and fields[name].get("type") != "object"), "")
    response = dict(islice(_fields(document, _response_schema(document, item)), _FIELDS_MAX))
    status = next((name for name in _STATUS_FIELDS if name in response), "status")
    words = [str(word) for word in _list(response.get(status, {}).get("enum"))]
    known = {word: result_class for result_class, listed in _STATUSES_BY_KIND[kind].items() for word in listed.split()}
    result_classes = tuple((word, known[word.lower()]) for word in words if word.lower() in known)
    if not any(result_class in {ResultClass.SUCCEEDED, ResultClass.PENDING} for _, result_class in result_classes):
        result_classes = ((PAID_STATUSES[kind], ResultClass.SUCCEEDED), *result_classes)
    name = str(kind) if str(kind) not in taken else _unused_name(match, taken)
    reference = next((found for found in ("id", "reference", "transaction_id") if found in response), "id")
    return DraftOperation(
        name=name,
        kind=kind,
        match=match,
        amount=amount,
        unit="minor" if fields.get(amount, {}).get("type") == "integer" else "major",
        currency=next((found for found in _CURRENCY_FIELDS if found in fields), "") if amount else "",
        intent=next((found for found in _ORDER_FIELDS if found in fields), ""),
        reference=reference,
        status=status,
        result_classes=result_classes,
        unclassified_statuses=tuple(_line(word) for word in words if word.lower() not in known),
        inquiry_request=_inquiry_request(document, match, prefix),
        found_in=_line(str(item.get("operationId") or item.get("summary") or "")),
    )


def _unused_name(match: str, taken: set[str]) -> str:
    words = [word for word in match.split(" ")[1].split("/") if word and not word.startswith("{")]
    stem = _name("_".join(words[-2:])) or "operation"
    return next(name for name in (stem, *(f"{stem[:36]}_{number}" for number in range(2, 1000))) if name not in taken)


def _inquiry_request(document: Tree, match: str, prefix: str) -> str:
    """The GET of the same path with one parameter at its end, as an inquiry."""
    path = match.removeprefix("POST ")
    for candidate, method, _ in _calls(document):
        head, _, last = (prefix + candidate).rpartition("/")
        if method == "GET" and head == path and last.startswith("{") and "{" not in head:
            return f"GET {head}/{{reference}}"
    return ""


def _match(path: str) -> str | None:
    """The path as a policy writes it: names in lower case, each a whole segment. None if that is impossible."""
    segments = []
    for segment in path.strip("/").split("/"):
        name = re.fullmatch(r"\{([^{}]+)\}", segment)
        if name is not None:
            segments.append(f"{{{_name(name[1]) or 'id'}}}")
        elif re.fullmatch(r"[A-Za-z0-9._~-]+", segment):
            segments.append(segment)
        else:
            return None
    names = [segment for segment in segments if segment.startswith("{")]
    return f"POST /{'/'.join(segments)}" if len(set(names)) == len(names) else None


def _name(text: str) -> str:
    """paymentId, Payment-Id or "Payment API" as payment_id or payment_api."""
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", text)
    found = re.sub(r"[^a-z0-9]+", "_", apart.lower()).strip("_")
    return re.sub(r"^[0-9_]+", "", found)[:40].rstrip("_")


def _line(text: str) -> str:
    return " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())[:80]


def _key_headers(document: Tree, item: dict[str, Any]) -> list[str]:
    found = [_resolved(document, parameter) for parameter in item["parameters"]]
    names = [str(one.get("name")) for one in found if one.get("in") == "header"]
    return [name for name in names if _KEY_HEADER.search(name) and re.fullmatch(r"[A-Za-z0-9-]{1,100}", name)]


def _server(document: Tree) -> str:
    url = _map(next(iter(_list(document.get("servers"))), None)).get("url")
    if isinstance(url, str) and re.match(r"https?://[^/{}]+", url):
        return re.match(r"https?://[^/{}]+", url)[0]  # type: ignore[index]  # it matched above
    host = document.get("host")
    return f"https://{host}" if isinstance(host, str) else ""


def _prefix(document: Tree) -> str:
    """The part of every path that is in the server's address. A policy matches the whole path."""
    url = _map(next(iter(_list(document.get("servers"))), None)).get("url")
    path = re.sub(r"^https?://[^/]+", "", url) if isinstance(url, str) else document.get("basePath") or ""
    return path.rstrip("/") if isinstance(path, str) and "{" not in path else ""


def _encoding(document: Tree) -> str:
    forms = [
        "application/x-www-form-urlencoded" in content and "application/json" not in content
        for _, method, item in _calls(document)
        if method == "POST" and isinstance(content := _resolved(document, item.get("requestBody")).get("content"), dict)
    ]
    return "form" if forms and sum(forms) * 2 > len(forms) else "json"


# --- Schemas


def _map(node: Any) -> dict[str, Any]:
    """The node if it is a mapping, else an empty one: a description may hold anything anywhere."""
    return node if isinstance(node, dict) else {}


def _list(node: Any) -> list[Any]:
    return node if isinstance(node, list) else []


def _resolved(document: Tree, node: Any, depth: int = 0) -> dict[str, Any]:
    """The node, or the target of its reference within the file."""
    if not isinstance(node, dict):
        return {}
    reference = node.get("$ref")
    if not isinstance(reference, str):
        return node
    if not reference.startswith("#/") or depth > _DEPTH_MAX:
        return {}
    found: Any = document
    for part in reference[2:].split("/"):
        name = part.replace("~1", "/").replace("~0", "~")
        found = found.get(name) if isinstance(found, dict) else None
    return _resolved(document, found, depth + 1)


def _schema_of(document: Tree, body: Any, parameters: list[Any]) -> Any:
    for media in _map(_resolved(document, body).get("content")).values():
        if "schema" in _map(media):
            return media["schema"]
    # In Swagger 2 the body is a parameter.
    bodies = [one for one in (_resolved(document, found) for found in parameters) if one.get("in") == "body"]
    return bodies[0].get("schema") if bodies else None


def _response_schema(document: Tree, item: dict[str, Any]) -> Any:
    for status, response in _map(item.get("responses")).items():
        if str(status).startswith("2"):
            resolved = _resolved(document, response)
            return resolved.get("schema") or _schema_of(document, resolved, [])
    return None


def _fields(document: Tree, schema: Any, prefix: str = "", depth: int = 0) -> Iterator[tuple[str, dict[str, Any]]]:
    """The fields of an object by their dotted paths, two levels deep: amounts are found there."""
    found = _resolved(document, schema)
    for part in _list(found.get("allOf")) if depth <= _DEPTH_MAX else ():
        yield from _fields(document, part, prefix, depth + 1)
    for name, child in _map(found.get("properties")).items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", str(name)):
            continue
        resolved = _resolved(document, child)
        yield f"{prefix}{name}", resolved
        if not prefix and depth <= _DEPTH_MAX:
            yield from _fields(document, resolved, f"{name}.", depth + 1)
