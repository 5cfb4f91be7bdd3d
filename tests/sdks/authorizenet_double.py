"""Authorize.net's double: one address for everything, in XML or in JSON, and answers that begin with a mark."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree

from tests.sdks.double import Double, Effect, Reply, Request

SCHEMA = "AnetApi/xml/v1/schema/AnetApiSchema.xsd"
MARK = b"\xef\xbb\xbf"
LOGIN = {"name": "login", "transactionKey": "key"}
DECLINED = "4222222222222"


class AuthorizeNetDouble(Double):
    provider = "authorizenet"
    content_type = "text/xml; charset=utf-8"

    def __init__(self) -> None:
        super().__init__()
        self.transactions: list[dict[str, str]] = []

    def order_of(self, request: Request) -> str:
        root, asked = _read(request.body)
        return str(asked["transactionRequest"]["order"]["invoiceNumber"]) if root == "createTransactionRequest" else ""

    def key_of(self, request: Request) -> str:
        return ""

    def error(self, status: int) -> Reply:
        return Reply(status, b"")

    def execute(self, request: Request) -> Reply:
        assert (request.method, request.path) == ("POST", "/xml/v1/request.api"), request
        root, asked = _read(request.body)
        if asked["merchantAuthentication"] != LOGIN:
            return _answer(request, "ErrorResponse", {"messages": _messages("Error", "E00007")})
        if root == "getUnsettledTransactionListRequest":
            assert list(asked) == ["merchantAuthentication", "sorting", "paging"]  # the schema has an order
            found = [{"transaction": one} for one in self.transactions]
            return _answer(request, "getUnsettledTransactionListResponse", {"transactions": found})
        asked = asked["transactionRequest"]
        if asked["payment"]["creditCard"]["cardNumber"] == DECLINED:
            said = {"responseCode": "2", "transId": "0", "errors": [{"error": {"errorCode": "2"}}]}
            return _answer(request, "createTransactionResponse", {"transactionResponse": said})
        made = {"transId": self.new_id("60"), "transactionStatus": "capturedPendingSettlement"}
        made |= {"invoiceNumber": asked["order"]["invoiceNumber"], "settleAmount": asked["amount"]}
        self.transactions.append(made)
        self.ledger.append(Effect(made["invoiceNumber"], made["settleAmount"]))
        said = {"responseCode": "1", "transId": made["transId"]}
        return _answer(request, "createTransactionResponse", {"transactionResponse": said})


def _read(body: bytes) -> tuple[str, dict[str, Any]]:
    if body.startswith(b"{"):
        [(root, asked)] = json.loads(body).items()
        return root, asked
    element = ElementTree.fromstring(body)
    assert element.tag.startswith(f"{{{SCHEMA}}}"), element.tag
    return element.tag.rpartition("}")[2], _tree(element)


def _tree(element: ElementTree.Element) -> Any:
    return {child.tag.rpartition("}")[2]: _tree(child) for child in element} or element.text


def _messages(result: str, code: str) -> dict[str, Any]:
    return {"resultCode": result, "message": [{"code": code, "text": "."}]}


def _answer(request: Request, root: str, said: dict[str, Any]) -> Reply:
    """JSON has no root, and lists where XML has elements inside of an element."""
    said = {"messages": _messages("Ok", "I00001"), **said}
    if request.body.startswith(b"{"):
        response = said.get("transactionResponse", {})
        if "errors" in response:
            response["errors"] = [one["error"] for one in response["errors"]]
        return Reply(200, MARK + json.dumps(said).encode(), {"Content-Type": "application/json; charset=utf-8"})
    return Reply(200, MARK + f'<?xml version="1.0"?><{root} xmlns="{SCHEMA}">{written(said)}</{root}>'.encode())


def written(value: Any) -> str:
    if isinstance(value, list):
        return "".join(written(one) for one in value)
    if isinstance(value, dict):
        return "".join(f"<{name}>{written(child)}</{name}>" for name, child in value.items())
    return str(value)
