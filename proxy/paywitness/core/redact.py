"""Redaction: what must never be read in a log or an answer of ours, and how it is masked. The only place that knows.

The first line of defence is that no record of ours carries a payload or a header value. This is the last one: the log
formatter and the admin's free texts pass through `redact`, so that a card number that slipped into an error message, a
note or a policy problem still does not get out. It masks too much rather than too little.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

MASK = "***"

# Between a field's name and its value: in JSON, JSON inside JSON, a form (encoded too), a dict's repr, a header.
_BETWEEN = r"(?:\]|%5D)?\\*[\"']?\s*(?:[:=]|%3D)\s*\\*[\"']?"
_VALUE = r"[;%]?[^\s\"'\\,;&}\])]+"
# A name begins where a word does: also after an encoded bracket, and inside cardCvc.
_BEGIN = r"(?-i:(?<![A-Za-z])|(?<=%5[Bb])|(?<=[a-z])(?=[A-Z]))"
_SECRET_NAMES = (
    # card verification and what a terminal reads; never stored, never logged, whatever its length
    r"cvc2?|cvv2?|csc|cvn|(?:card[-_]?)?verification[-_]?(?:value|code)|(?:card[-_]?)?security[-_]?code"
    r"|pin(?:[-_]?block)?|track[-_]?[123]?(?:[-_]?data)?"
    # credentials
    r"|authorization|api[-_]?key|secret(?:[-_]?key)?|(?:client|webhook)[-_]?secret|(?:access|refresh|id)[-_]?token"
    r"|private[-_]?key|passw(?:or)?d"
)
_SECRET_NAME = re.compile(rf"(?i){_BEGIN}(?:{_SECRET_NAMES})\Z")
# `operations.authorization:` is the place of a mistake in a policy, not a credential.
_SECRET_FIELD = re.compile(
    rf"(?i){_BEGIN}(?<!operations\.)((?:{_SECRET_NAMES}){_BETWEEN}(?:(?:bearer|basic)\s+)?){_VALUE}"
)
_CREDENTIAL_SCHEME = re.compile(r"(?i)\b(bearer|basic)(\s+|%20|\+)[a-z0-9._~+/=-]{6,}")

# Keys that are known by how they begin: Stripe, webhook secrets, Razorpay, Mollie, Braintree, Square, GitHub, any JWT.
_KNOWN_KEYS = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"(?:sk|rk|pk|rzp)_(?:live|test)_[A-Za-z0-9_]+"
    r"|whsec_[A-Za-z0-9+/=_-]+"
    r"|(?:live|test)_[A-Za-z0-9]{24,}"
    r"|access_token\$[a-z]+\$[A-Za-z0-9$]+"
    r"|EAAA[A-Za-z0-9_-]{16,}"
    r"|sq0[a-z]{3}-[A-Za-z0-9_-]{16,}"
    r"|gh[pousr]_[A-Za-z0-9]{20,}"
    r"|eyJ[A-Za-z0-9_-]{5,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*"
    r")",
)

# Card numbers: 13 to 19 digits (ISO/IEC 7812) that pass Luhn's check, in one piece or in groups.
_DIGITS_MIN, _DIGITS_MAX = 13, 19
_GROUPED_DIGITS = re.compile(r"[0-9](?:[0-9]|[ \t\u00a0-]{1,2}(?=[0-9])){12,}")
_GROUP = re.compile(r"[0-9]+")
_LENGTH_MIN = 8  # of a text that could hold any of it: `whsec_` and something


def redact(text: str) -> str:
    """The text with card numbers, card verification codes and credentials masked."""
    if ":" in text or "=" in text or "%3" in text:  # most texts are a word or two: no field stands in them
        text = _SECRET_FIELD.sub(rf"\g<1>{MASK}", text)
    elif len(text) < _LENGTH_MIN:
        return text
    text = _CREDENTIAL_SCHEME.sub(rf"\g<1>\g<2>{MASK}", text)
    text = _KNOWN_KEYS.sub(MASK, text)
    return _GROUPED_DIGITS.sub(_mask_cards, text)


def redact_tree(value: object) -> object:
    """Plain data (as JSON has it) with every text in it redacted, and every field masked whose name tells a secret."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {name: MASK if _is_secret_name(str(name)) else redact_tree(item) for name, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [redact_tree(item) for item in value]
    if isinstance(value, int) and abs(value) >= 10 ** (_DIGITS_MIN - 1):
        return value if redact(str(value)) == str(value) else MASK
    return value


@lru_cache(maxsize=512)  # the names of fields are few, and the same on every line
def _is_secret_name(name: str) -> bool:
    return _SECRET_NAME.search(name) is not None


def _mask_cards(found: re.Match[str]) -> str:
    """The run of digit groups with every stretch of whole groups that could be a card number masked."""
    run = found.group()
    groups = [(group.start(), group.end()) for group in _GROUP.finditer(run)]
    kept: list[str] = []
    shown_to = 0
    first = 0
    while first < len(groups):
        last = _card_from(run, groups, first)
        if last is None:
            first += 1
            continue
        kept += (run[shown_to : groups[first][0]], MASK)
        shown_to = groups[last][1]
        first = last + 1
    return "".join((*kept, run[shown_to:]))


def _card_from(run: str, groups: list[tuple[int, int]], first: int) -> int | None:
    """The last group of a card number that begins with the group `first`, or None."""
    digits = ""
    for index in range(first, len(groups)):
        digits += run[groups[index][0] : groups[index][1]]
        if len(digits) > _DIGITS_MAX:
            # More digits in one piece than any number of ours has: a card may hide anywhere in it.
            return index if index == first else None
        if len(digits) >= _DIGITS_MIN and passes_luhn(digits):
            return index
    return None


def passes_luhn(digits: str) -> bool:
    """Luhn's check: every second digit from the right doubled, the sum of all digits a multiple of ten."""
    total = 0
    for position, digit in enumerate(reversed(digits)):
        value = ord(digit) - 48
        if position % 2:
            value = value * 2 - 9 if value > 4 else value * 2
        total += value
    return total % 10 == 0
