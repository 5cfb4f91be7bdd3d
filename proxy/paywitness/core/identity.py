"""Identity: which operation a call is. Keys, fingerprint, guard, provider key; all keyed by the identity secret.

The same call gives the same identity on every sidecar, for as long as the journal lives, because the secret never
changes under a journal. Credentials are not part of the identity, because they rotate. Values from callers enter only
through HMAC, with a label for each purpose and length-prefixed parts, so that no two different inputs run into one.
"""

from __future__ import annotations

import hmac
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable
from decimal import Decimal
from functools import lru_cache
from urllib.parse import parse_qsl

from paywitness.core.bodies.tree import Tree, form_path, value_at, without_paths
from paywitness.core.call import Call, Headers
from paywitness.core.claim import generation_key
from paywitness.core.credential_and_hop_headers import CREDENTIAL_HEADERS
from paywitness.core.credential_owners import AccountSource, CredentialClaim
from paywitness.core.operation import Guard, GuardKind, RepeatPaymentRule
from paywitness.core.policy import Policy
from paywitness.core.provider_contract import FieldKind, FieldRef, OperationKind, ProviderContract
from paywitness.core.record import record

CLIENT_KEY_LENGTH_MAX = 255
LABEL_LENGTH_MAX = 255


@record
class Identity:
    key: str
    account: str
    client_key: str
    key_source: str
    key_names_purchase: bool
    provider_key: str | None
    key_stem: str | None
    fingerprint: str
    ignore: tuple[str, ...]
    credential: str
    guard: Guard | None
    account_source: AccountSource = AccountSource.CONSTANT


def keyed_hash(secret: bytes, label: str, *parts: str | bytes) -> str:
    """HMAC-SHA256 over length-prefixed parts, as hex."""
    message = []
    for part in parts:
        # JSON may carry half of a surrogate pair; it must hash like any other text.
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        message.append(len(data).to_bytes(8, "big"))
        message.append(data)
    digest = _started_hmac(secret, label).copy()
    digest.update(b"".join(message))
    return digest.hexdigest()


@lru_cache(maxsize=64)
def _started_hmac(secret: bytes, label: str) -> hmac.HMAC:
    """An HMAC to be copied: all calls use the same few labels, and setting one up takes longer than the hashing."""
    return hmac.new(secret, label.encode(), "sha256")


@lru_cache(maxsize=1024)
def _cached_hash(secret: bytes, label: str, *parts: str) -> str:
    """`keyed_hash` with a cache, for accounts and owners: most calls have the same few."""
    return keyed_hash(secret, label, *parts)[:32]


def check_value(secret: bytes) -> str:
    """A value by which the journal recognises its identity secret. It reveals nothing about the secret."""
    return keyed_hash(secret, "check")[:32]


def identify(
    call: Call, policy: Policy, tree: Tree, parameters: dict[str, str], secret: bytes, generated: Callable[[], str]
) -> Identity:
    """The identity of a call under its policy. `generated` makes a key if the caller gives none."""
    account, account_source = _account_and_source(call, policy, tree, parameters, secret)
    client_key, source, field_ref = client_key_of(call, policy, tree, parameters)
    if client_key is None:
        client_key = generated()
    provider_name, operation_name = policy.key_provider, policy.key_operation
    key = keyed_hash(secret, "operation", provider_name, account, operation_name, client_key)
    fingerprint = fingerprint_of(call, tree, policy.fingerprint_ignores, secret)
    send_as = policy.contract.send_as
    stem = keyed_hash(secret, "provider_key", key) if send_as is not None else None
    names_purchase = field_ref is not None and field_ref.kind is FieldKind.BODY and field_ref != send_as
    only_we_know = policy.only_we_know or (policy.account_told_by is None and bool(call.options.account))
    return Identity(
        key,
        account,
        client_key,
        source,
        names_purchase,
        _provider_key(client_key, field_ref, policy.contract, stem, only_we_know=only_we_know),
        stem,
        fingerprint,
        policy.fingerprint_ignores,
        credential_of(call, secret),
        _guard_of(call, policy, tree, parameters, (provider_name, account, operation_name), fingerprint, secret),
        account_source,
    )


def value_in(field_ref: FieldRef, call: Call, tree: Tree, parameters: dict[str, str]) -> str | None:
    """The text at a place of the request; None if there is none."""
    kind = field_ref.kind
    if kind is FieldKind.HEADER:
        value = call.headers_by_name.get(field_ref.header_key)
        return value.decode("latin-1") if value is not None else None
    if kind is FieldKind.CONST:
        return field_ref.name
    if kind is FieldKind.PATH:
        return parameters.get(field_ref.name)
    found = value_at(tree, field_ref.name)
    if isinstance(found, bool) or not isinstance(found, (str, int)):
        return None
    return str(found) or None


def account_of(call: Call, policy: Policy, tree: Tree, parameters: dict[str, str], secret: bytes) -> str:
    """Keyed hash of all values that identify the account. A selector that the request does not have counts as empty."""
    return _account_and_source(call, policy, tree, parameters, secret)[0]


def _account_and_source(
    call: Call, policy: Policy, tree: Tree, parameters: dict[str, str], secret: bytes
) -> tuple[str, AccountSource]:
    """The account, and the source of its name. A selector of the policy takes precedence over our own header."""
    source, option = policy.account_told_by, call.options.account
    told = source is not None
    selected = []
    for field_ref in policy.account:
        if field_ref.kind is FieldKind.CONST:
            selected.append(field_ref.name)
            continue
        found = value_in(field_ref, call, tree, parameters) or ""
        selected.append(found)
        if source is None and found:
            source = AccountSource.SELECTOR
    account = _cached_hash(secret, "account", "" if told else option or "", *selected)
    return account, source or (AccountSource.HEADER if option else AccountSource.CONSTANT)


def account_hashes_named(field_refs: tuple[FieldRef, ...], name: str, secret: bytes) -> frozenset[str]:
    """Every account hash that this name can stand for: the caller named it in our own header only, or in all of the
    policy's places, or in one of them. "" is the account of calls that name none."""
    named = [index for index, field_ref in enumerate(field_refs) if field_ref.kind is not FieldKind.CONST]

    def hashed(option: str, filled: Iterable[int]) -> str:
        held = set(filled)
        selected = [
            field_ref.name if field_ref.kind is FieldKind.CONST else name if index in held else ""
            for index, field_ref in enumerate(field_refs)
        ]
        return _cached_hash(secret, "account", option, *selected)

    return frozenset({hashed(name, ()), hashed("", named), *(hashed("", (index,)) for index in named)})


def client_key_of(
    call: Call, policy: Policy, tree: Tree, parameters: dict[str, str]
) -> tuple[str | None, str, FieldRef | None]:
    """The caller's key, its source, and the policy's place for it if it came from one."""
    if call.options.key is not None:
        return call.options.key, "paywitness-key", None
    for field_ref in policy.take_from:
        found = value_in(field_ref, call, tree, parameters)
        if found:
            return found, field_ref.written, field_ref
    return None, "generated", None


def _provider_key(
    client_key: str, field_ref: FieldRef | None, contract: ProviderContract, stem: str | None, *, only_we_know: bool
) -> str | None:
    """The client's own key if it came in the provider's own place and the provider accepts it; else one derived from
    ours. It is also derived if only we know the account (`Paywitness-Account`), because at the provider equal keys of
    two accounts would collide."""
    if contract.send_as is None or stem is None:
        return None
    own_place = field_ref == contract.send_as and contract.key_space_is_account and not only_we_know
    if own_place and provider_accepts(contract, client_key):
        return client_key
    return generation_key(stem, 1)


def fingerprint_of(call: Call, tree: Tree, ignore: tuple[str, ...], secret: bytes) -> str:
    """Keyed hash of the request: method, path, query and body, without the fields that the policy ignores."""
    query = json.dumps(sorted(parse_qsl(call.query, keep_blank_values=True))) if call.query else "[]"
    parts = [call.method, call.path, query, canonical(without_paths(tree, ignore))]
    if lost := lost_in_tree(call.body, ignore):
        parts.append(lost)
    return keyed_hash(secret, "fingerprint", *parts)


_LONG_NUMBER = re.compile(rb"-?\d[\d.]{15,}(?:[eE][+-]?\d+)?")
_NOT_A_FORM = (b"{", b"[", b"<", b'"')


def provider_accepts(contract: ProviderContract, key: str) -> bool:
    """Whether the provider accepts this text as a key."""
    fits = contract.min_length <= len(key) <= contract.max_length and key.isascii()
    return fits and (contract.characters is None or contract.characters.issuperset(key))


def lost_in_tree(body: bytes, ignore: tuple[str, ...]) -> str:
    """The details of a body that its tree loses, without the ignored paths. The fingerprint must include them, so that
    two bodies which a provider may read differently never have the same one. Empty for almost every body.

    In a form only the provider knows to which item a field `a[][b]` belongs, and whether `a=1&a=2` means the first, the
    last or both. A number may have more digits than a float holds. `a[]=1&a[]=2` and `a[0]=1&a[1]=2` mean the same. The
    usual ways to write a form add nothing here, so their fingerprints do not change."""
    if body.lstrip()[:1] in _NOT_A_FORM:
        long_numbers = _LONG_NUMBER.findall(body)
        return _lossy(long_numbers) if long_numbers else ""
    if b"=" not in body:
        return ""
    try:
        pairs = parse_qsl(body.decode("ascii"), keep_blank_values=True)
    except (ValueError, UnicodeDecodeError):
        return ""
    counts = Counter(name for name, _ in pairs)
    unusual = [
        (name, value)
        for name, value in pairs
        if _is_unusual(form_path(name), counts[name]) and not _is_ignored(form_path(name), ignore)
    ]
    return json.dumps(unusual) if unusual else ""


def _is_unusual(path: list[str], count: int) -> bool:
    """Whether the field is written in an unusual way, so that the tree does not show all of its meaning."""
    if "" in path[1:-1]:
        return True  # a[][b]: the order decides to which item it belongs
    return count > 1 and not (len(path) > 1 and path[-1] == "")  # a=1&a=2, but not a[]=1&a[]=2


def _is_ignored(path: list[str], ignore: tuple[str, ...]) -> bool:
    names = [part for part in path if part]
    return any(names[: len(parts)] == parts for parts in (each.split(".") for each in ignore))


def _lossy(numbers: list[bytes]) -> str:
    """The numbers of a JSON body that a float cannot hold exactly. Whole numbers are exact whatever their length."""
    found = [text.decode() for text in numbers]
    lossy = [text for text in found if ("." in text or "e" in text.lower()) and _is_lossy(text)]
    return json.dumps(sorted(lossy)) if lossy else ""


def _is_lossy(text: str) -> bool:
    try:
        return Decimal(text) != Decimal(repr(float(text)))
    except (ValueError, ArithmeticError):
        return False  # no number: part of a text


# The same text for the same meaning: key order and white space do not count.
canonical = json.JSONEncoder(separators=(",", ":"), sort_keys=True, check_circular=False).encode


def credential_of(call: Call, secret: bytes) -> str:
    """Keyed hash of the credential headers. It decides who may see a replay."""
    return _credential_hash(secret, *map(call.headers_by_name.get, CREDENTIAL_HEADERS))


@lru_cache(maxsize=1024)
def _credential_hash(secret: bytes, *found: bytes | None) -> str:
    return keyed_hash(secret, "credential", *((value or b"").decode("latin-1") for value in found))[:32]


def credential_in(headers: Headers, secret: bytes) -> str:
    """As `credential_of`, for the headers of a request."""
    by_name = {name.lower(): value for name, value in reversed(headers)}
    return _credential_hash(secret, *map(by_name.get, CREDENTIAL_HEADERS))


def owner_hash(scope: str, owner: str, secret: bytes) -> str:
    """Keyed hash of the owner that a provider names. `scope` is the provider's name in keys."""
    return _cached_hash(secret, "owner", scope, owner)


def credential_claim(policy: Policy, identity: Identity) -> CredentialClaim:
    """The facts about the call's credential that its claim needs."""
    return CredentialClaim(policy.key_provider, policy.accounts.tells_owners_apart, identity.account_source)


def request_hash_of(method: str, target: str, body: bytes, secret: bytes) -> str:
    """Keyed hash of the exact bytes that an attempt sends."""
    return keyed_hash(secret, "request", method, target, body)


def is_usable_key(client_key: str) -> bool:
    """Whether a caller's key can be stored, shown and sent: printable, not blank, not too long."""
    return 0 < len(client_key) <= CLIENT_KEY_LENGTH_MAX and client_key.isprintable() and bool(client_key.strip())


def _guard_of(
    call: Call,
    policy: Policy,
    tree: Tree,
    parameters: dict[str, str],
    scope: tuple[str, str, str],
    fingerprint: str,
    secret: bytes,
) -> Guard | None:
    """The guard of a call: a paying operation is guarded by its intent, one that acts on an object by that object, any
    other by its content. `scope`: provider, account and operation, under their names in keys (`formerly:`), so that a
    rename lifts no guard."""
    if not policy.kind.moves_money:
        return None
    if policy.kind.pays:
        intent = call.options.intent or _intent_in(policy, tree)
        if intent:
            return intent_guard_of(policy, scope[1], intent, secret)
    places = () if policy.target is None else (policy.target, *policy.target_also)
    found = [value_in(place, call, tree, parameters) for place in places]
    target = [text for text in found if text]
    if len(target) < len(places):
        target = []  # a part of a reference would name several transfers
    is_payout = policy.kind is OperationKind.PAYOUT
    named = (call.options.intent or (None if target else _intent_in(policy, tree))) if is_payout else None
    if named:
        target = [named]  # a payout's reference
    if target:
        value = keyed_hash(secret, "target", *scope, *target)[:32]
        after_success = policy.after_success if is_payout else RepeatPaymentRule.FLAG
        return Guard(GuardKind.TARGET, value, _label_of(" ".join(target)), after_success)
    if call.options.key is not None:
        return None  # the caller names each payment itself, which shows which of them are the same
    return Guard(GuardKind.FINGERPRINT, keyed_hash(secret, "same", *scope, fingerprint)[:32])


def created_intent(call: Call, policy: Policy, tree: Tree, account: str, secret: bytes) -> Guard | None:
    """The intent of a call that creates or updates an object and moves nothing yet. Its later steps get this intent."""
    if policy.kind.moves_money:
        return None
    intent = call.options.intent or _intent_in(policy, tree)
    return intent_guard_of(policy, account, intent, secret) if intent else None


def intent_guard_of(policy: Policy, account: str, intent: str, secret: bytes) -> Guard:
    value = intent_guard(policy, account, intent, secret)
    return Guard(GuardKind.INTENT, value, _label_of(intent), policy.after_success, policy.during_action)


def intent_guard(policy: Policy, account: str, intent: str, secret: bytes) -> str:
    """The guard's value for a payment of this intent. If the merchant has a name, it is the same at all of its
    providers."""
    payers = ("merchant", policy.merchant) if policy.merchant else ("account", policy.key_provider, account)
    return keyed_hash(secret, "intent", *payers, intent)[:32]


def intent_label(intent: str) -> str:
    """The label of this intent's guard, by which a journal finds its operations. A long order number is truncated."""
    return _label_of(intent)


def _label_of(text: str) -> str:
    """A caller's text in a form that a journal can store and a person can search for. JSON may contain halves of
    characters."""
    whole = text if text.isascii() else text.encode("utf-8", "replace").decode()
    return whole[:LABEL_LENGTH_MAX]


def _intent_in(policy: Policy, tree: Tree) -> str | None:
    found = policy.intent(tree) if policy.intent is not None else None
    return str(found) if isinstance(found, (str, int)) and not isinstance(found, bool) and found != "" else None
