"""The keys of a policy file, block by block: the values of each key, and whether it is in force yet.

This is the only list of keys. Readers may ask only for keys in it, every other key is unknown, and docs/policies.md
explains every key of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_EXPRESSION = "a JMESPath expression"
_DURATION = "a duration such as 300ms, 2s, 5m, 24h or 30d"
_NAME = "a name of lower-case letters, digits and _"
_LIMITS = "enforce, warn or off"


@dataclass(frozen=True, slots=True)
class Block:
    """One mapping of the file: its keys and their values."""

    title: str
    keys: Mapping[str, str]
    required: tuple[str, ...] = ()


FILE = Block(
    "file",
    {
        "extends": "paywitness:NAME, a shipped policy to build on",
        "provider": _NAME,
        "formerly": "the provider's earlier name, which stays in its keys",
        "identity_change": "accepted",
        "mode": "enforce or observe",
        "merchant": "a name: the scope of intents across providers",
        "upstream": "the provider's address, such as https://api.example.com",
        "hosts": "a list of host names",
        "listen": "an address and a port such as 127.0.0.1:8711",
        "tls": "a mapping: roots, certificate, key",
        "private": "true or false",
        "connections": "auto, reuse or fresh",
        "body": "json, form or xml",
        "account": "a list of const:TEXT, header:NAME, body:PATH, path:PARAMETER",
        "idempotency": "a mapping: how the provider dedupes",
        "stamp": "header:NAME, body:PATH or none",
        "stamp_keys_max": "a whole number from 1 to 10000",
        "timeouts": "a mapping of durations",
        "headers": "a mapping of request headers to set",
        "never_store": "a list of dotted body paths",
        "ignore": "a list of dotted body paths",
        "operations": "a mapping from an operation's name to its rules",
        "answers": "a mapping from the name of a provider's object to rows that read it",
        "classify": "a list of rows that read a response",
        "tables": "a mapping from a table's name to lists of codes by reading",
        "advice": "lists of codes by advice for the customer: contact_issuer: [do_not_honor]",
        "problem": "the provider's error shape, with {detail} and {code} in its texts",
        "give_up_headers": "a mapping of headers for our own replies that a repeat cannot change",
        "credentials": "a mapping: header or oauth2",
        "same_credentials_as": "the name of the provider whose callers' credentials it takes",
        "who_am_i": "a mapping: request, query, field",
        "merchants": "one or many",
        "accounts": "a mapping from an account's name to its merchant, owner, selectors and credentials",
        "unmatched": "forward or refuse",
        "retry": "a mapping: default, and failure classes",
        "budget": "a mapping: the allowance for retries",
        "circuit": "a mapping: when to stop calling",
        "limited_by": "credential, account or provider",
        "request_id": "header:NAME of a response",
        "priority": "a list of rows that give calls a priority",
        "resolve": "a mapping: how doubt is resolved",
        "webhook": "a mapping: how the provider's events are read",
        "fallback": "a list of other providers",
        "limits": _LIMITS,
        "dashboard": "a link such as https://dashboard.example.com/payments/{reference}",
    },
    required=("provider", "upstream", "operations"),
)

OPERATION = Block(
    "operation",
    {
        "kind": "authorization, sale, capture, increment, refund, void, reversal, payout or none",
        "formerly": "the operation's earlier name, which stays in its keys",
        "match": "a method and a path such as POST /v1/charges/{charge}/refunds, or a list of them",
        "where": f"{_EXPRESSION} over the request's body",
        "amount": "a mapping: at, unit, absent",
        "currency": f"{_EXPRESSION} over the request's body",
        "intent": f"{_EXPRESSION} over the request's body",
        "target": "path:PARAMETER, body:PATH or header:NAME; of a payout also a list of them",
        "reference": f"{_EXPRESSION} over the response",
        "fits": "a mapping: the places of amount, currency and our stamp in the response; or none",
        "payment": "path:PARAMETER, body:PATH or header:NAME, or a list of them",
        "also_known_as": f"{_EXPRESSION} over the provider's object, or a list of them",
        "captures": f"automatic, manual or {_EXPRESSION} over the response",
        "balance": "a mapping: authorised, captured, capturable, refunded, disputed, currency, unit",
        "limits": _LIMITS,
        "overcapture": "a mapping: share, at_most",
        "means": "total or difference",
        "final": f"yes, no or {_EXPRESSION} over the request's body",
        "partial": "single or sequence",
        "continues": "yes or no",
        "once_per_target": "yes or no",
        "failed_after_success": "incident or returned",
        "intent_total": f"{_EXPRESSION} over the request's body",
        "intent_at": f"{_EXPRESSION} over the provider's object",
        "authorization_expires": _DURATION,
        "capture_before": f"{_EXPRESSION} over the provider's object",
        "payout": "a mapping: beneficiary, caps, approval_above, approval_valid, check",
        "after_success": "block, flag or allow",
        "during_action": "block, flag or allow",
        "answer": "the name of an object under 'answers'",
        "as_response": f"{_EXPRESSION} over the object that an inquiry found",
        "cancel": "a mapping: request, read",
        "ask": "a list of inquiries",
        "belongs": "a mapping: reference, key, stamp, denied_at",
        "idempotency": "a mapping: the values that differ from the provider's",
        "stamp": "header:NAME, body:PATH or none",
        "stamp_keys_max": "a whole number from 1 to 10000",
        "timeouts": "a mapping of durations",
        "headers": "a mapping of request headers to set",
        "never_store": "a list of dotted body paths, added to the provider's",
        "ignore": "a list of dotted body paths, added to the provider's",
        "retry": "a mapping: the values that differ from the provider's",
        "priority": "a list of rows, in front of the provider's",
        "resolve": "a mapping: the values that differ from the provider's",
        "webhook": "none: no event is about this operation",
        "dashboard": "a link such as https://dashboard.example.com/payments/{reference}",
    },
    required=("kind", "match"),
)

IDEMPOTENCY = Block(
    "idempotency",
    {
        "send_as": "header:NAME, body:PATH or none",
        "take_from": "a list of header:NAME, body:PATH, path:PARAMETER",
        "window": "a duration, unknown, or {assumed: a duration}",
        "max_length": "a whole number from 36 to 1000",
        "min_length": "a whole number from 1 to 36",
        "characters": "the characters of a key, such as A-Z a-z 0-9 _ -",
        "errors_under_key": "replayed, reexecuted, not_stored, unknown, or {assumed: one of them}",
        "required": "true or false",
        "key_space": "account or wider",
    },
)
ASSUMED = Block("assumed", {"assumed": "the value that is assumed"}, required=("assumed",))
AMOUNT = Block("amount", {"at": _EXPRESSION, "unit": "minor or major", "absent": "full"}, required=("at", "unit"))
FITS = Block(
    "fits",
    {
        "amount": _EXPRESSION,
        "currency": _EXPRESSION,
        "unit": "minor or major",
        "stamp": _EXPRESSION,
    },
)
BALANCE = Block(
    "balance",
    {
        **dict.fromkeys(("authorised", "captured", "capturable", "refunded", "disputed"), f"{_EXPRESSION}: an amount"),
        "currency": _EXPRESSION,
        "unit": "minor or major",
    },
)
OVERCAPTURE = Block(
    "overcapture",
    {
        "share": "a percentage of what was authorised, such as 15%",
        "at_most": "an amount such as 75.00 USD, or a list of them, one for each currency",
    },
    required=("share",),
)
PAYOUT = Block(
    "payout",
    {
        "beneficiary": "body:PATH, path:PARAMETER or header:NAME, or a list of them",
        "caps": "a list of caps: per, window, amount, currency",
        "approval_above": "a list of amounts: amount, currency",
        "approval_valid": _DURATION,
        "check": "a mapping: url, secret, timeout",
    },
)
CAPS = Block(
    "caps",
    {
        "per": "beneficiary or account",
        "window": "a duration of whole hours or days such as 1h, 1d or 7d",
        "amount": "an amount in major units such as 5000.00",
        "currency": "a currency such as EUR",
    },
    required=("per", "window", "amount", "currency"),
)
APPROVAL_ABOVE = Block(
    "approval_above",
    {"amount": "an amount in major units such as 1000.00", "currency": "a currency such as EUR"},
    required=("amount", "currency"),
)
CHECK = Block(
    "check",
    {
        "url": "an address of your own such as https://risk.example.com/payouts",
        "secret": "env:NAME",
        "timeout": _DURATION,
    },
    required=("url", "secret"),
)
TLS = Block("tls", dict.fromkeys(("roots", "certificate", "key"), "the full path of a PEM file"))
TIMEOUTS = Block(
    "timeouts",
    dict.fromkeys(("connect", "tls", "write", "first_byte", "body_idle", "deadline"), _DURATION),
)
RETRY_RULE = Block(
    "retry",
    {
        "attempts": "a whole number from 1 to 10",
        "backoff": "full, equal, decorrelated or proportional",
        "base": _DURATION,
        "cap": _DURATION,
    },
)
RESOLVE = Block(
    "resolve",
    {
        "settle": _DURATION,
        "resend_for": _DURATION,
        "schedule": "a list of durations, rising",
        "action_expires": _DURATION,
        "on_action_expired": "set_aside or cancel",
    },
)
ROW = Block(
    "row",
    {
        "when": f"{_EXPRESSION} over the response",
        "body": "the same as 'when'",
        "status": "an HTTP status such as 402 or 5xx, or a list of them",
        "header": "a mapping from a header's name to its value",
        "as": "a reading",
        "effect": "none, possible or done",
        "stored": "true or false: whether the provider stores such a response under the key",
        "code": f"{_EXPRESSION} that gives a code to look up in 'table'",
        "table": "the name of a table under 'tables'",
        "otherwise": "a reading for codes that the table does not list",
        "advice": "the advice for the customer, such as contact_issuer",
        "fallback": "true or false: whether a refusal that it reads may be made by another route",
        "observe": "true or false",
    },
)
ASK = Block(
    "ask",
    {
        "needs": "reference",
        "request": "a method and a path such as GET /v1/charges/{reference}",
        "query": "a mapping from a parameter's name to its value",
        "body": "a mapping: the body of a look-up that is a POST",
        "headers": "a mapping of request headers to set",
        "at": f"{_EXPRESSION}: the place of the object in the response",
        "more": f"{_EXPRESSION} that is true if the response is one page of several",
        "always_lists": f"{_EXPRESSION}: the list that the provider always sends, even if it is empty",
        "answer": "the name of an object under 'answers'",
        "lag": _DURATION,
        "misses": "a whole number from 1 to 10",
        "belongs": "a mapping: reference, key, stamp, denied_at",
    },
    required=("request", "answer"),
)
BELONGS = Block(
    "belongs",
    dict.fromkeys(("reference", "key", "stamp", "denied_at"), f"{_EXPRESSION} over the object that was found"),
)
CANCEL = Block(
    "cancel",
    {
        "needs": "reference",
        "request": "a method and a path such as POST /v1/charges/{reference}/void",
        "body": "a mapping: the body to send",
        "read": "a list of rows that read its response",
        "when": "operator or schedule_ran_out",
    },
    required=("request", "read"),
)
CREDENTIALS = Block("credentials", {"header": "a mapping from a header's name to env:NAME", "oauth2": "a mapping"})
OAUTH2 = Block(
    "oauth2",
    {
        "token": "a method and a path such as POST /v1/oauth2/token",
        "client_id": "env:NAME",
        "client_secret": "env:NAME",
        "scope": "text",
    },
    required=("token", "client_id", "client_secret"),
)
WHO_AM_I = Block(
    "who_am_i",
    {
        "request": "GET and a path such as GET /v1/account",
        "query": "a mapping from a parameter's name to its value",
        "field": f"{_EXPRESSION} over the response: the owner's id",
    },
    required=("request", "field"),
)
NAMED_ACCOUNT = Block(
    "accounts",
    {
        "merchant": "a name: its merchant, across providers",
        "owner": "the owner's id, as the response to who_am_i shows it",
        "selectors": "a mapping from a place of 'account' to its value",
        "credentials": "a mapping: header or oauth2, or a list of them",
    },
)
BUDGET = Block(
    "budget",
    {
        "window": _DURATION,
        "provider": "a mapping: floor, ratio, ceiling",
        "operation": "a mapping: floor, ratio, ceiling",
        "account": "a mapping: floor, ratio, ceiling",
        "failure_class": "a mapping: floor, ratio, ceiling",
        "per_intent": "a whole number from 0 to 100",
    },
)
SCOPE = Block("scope", {"floor": "a whole number", "ratio": "a percentage", "ceiling": "a percentage"})
CIRCUIT = Block(
    "circuit",
    {
        "window": _DURATION,
        "minimum": "a whole number from 1 to 100000",
        "slow_after": _DURATION,
        "open_at": "a mapping: bad, unknown, slow",
        "degrade_at": "a mapping: bad, unknown, slow, throttled",
    },
)
OPEN_AT = Block("open_at", dict.fromkeys(("bad", "unknown", "slow"), "a percentage"))
DEGRADE_AT = Block("degrade_at", dict.fromkeys(("bad", "unknown", "slow", "throttled"), "a percentage"))
PRIORITY = Block(
    "priority",
    {
        "when": f"{_EXPRESSION} over the request's body",
        "above": "an amount in major units and its currency, such as 500.00 EUR",
        "below": "an amount in major units and its currency, such as 5.00 EUR",
        "as": "high, medium or low",
    },
    required=("as",),
)
WEBHOOK = Block(
    "webhook",
    {
        "scheme": "the name of a signature scheme, or {name: {its options}}",
        "secrets": "a list of env:NAME, or such a list for each account",
        "account": f"{_EXPRESSION} that gives the account an event is about",
        "payment": f"{_EXPRESSION} that gives the provider's name for the payment an event is about",
        "tolerance": _DURATION,
        "events": f"{_EXPRESSION} that gives the events of a webhook",
        "event_id": f"{_EXPRESSION} or header:NAME, or a list of them",
        "occurred_at": f"{_EXPRESSION} that gives the time of the event",
        "find": "a list of {what: a JMESPath expression}",
        "belongs": "a mapping: reference, key, stamp",
        "at": f"{_EXPRESSION}: the place of the object in the event",
        "answer": "the name of an object under 'answers'",
        "answer_by": f"{_EXPRESSION} that gives the name of the object",
        "read": "a list of rows that read the event",
        "hint": "true or false: whether an event is only a reason to inquire",
        "reply": "the text of our reply",
        "refuse_with": "401, 403 or 498",
        "relay": "the service's own webhook address, such as http://127.0.0.1:8080/webhooks",
    },
    required=("scheme", "event_id", "find"),
)
FALLBACK = Block(
    "fallback",
    {
        "to": "the name of another provider",
        "when": "a list of not_sent, rate_limited, circuit_open, absent, rejected",
        "after": "a whole number from 1 to 10",
    },
    required=("to", "when"),
)

BLOCKS = (
    FILE,
    OPERATION,
    IDEMPOTENCY,
    ASSUMED,
    AMOUNT,
    FITS,
    BALANCE,
    OVERCAPTURE,
    PAYOUT,
    CAPS,
    APPROVAL_ABOVE,
    CHECK,
    TLS,
    TIMEOUTS,
    RETRY_RULE,
    RESOLVE,
    ROW,
    ASK,
    BELONGS,
    CANCEL,
    CREDENTIALS,
    OAUTH2,
    WHO_AM_I,
    NAMED_ACCOUNT,
    BUDGET,
    SCOPE,
    CIRCUIT,
    OPEN_AT,
    DEGRADE_AT,
    PRIORITY,
    WEBHOOK,
    FALLBACK,
)
