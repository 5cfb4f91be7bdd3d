"""What holds for every scheme that signs no time: rotation, forgery, empty secrets, bounds."""

from __future__ import annotations

import hmac

import pytest

from paywitness.core.call import Headers
from paywitness.webhook_signatures.registry import SCHEMES, scheme_named
from paywitness.webhook_signatures.scheme import SignatureVerdict
from tests.webhook_signatures.signing import NEEDED, NOW, SENDERS, UNTIMED, check

# Hex, for the schemes whose keys are written so; for the others it is a text like any other.
NEW, OLD = b"0a1b2c3d4e5f60718293a4b5c6d7e8f9", b"ffeeddccbbaa99887766554433221100"
every_scheme = pytest.mark.parametrize("scheme", UNTIMED)
in_a_header = pytest.mark.parametrize(
    "scheme", [name for name in UNTIMED if name not in ("adyen", "braintree", "midtrans")]
)
over_the_body = pytest.mark.parametrize(
    "scheme", [name for name in UNTIMED if name not in ("xendit", "flutterwave", "token", "midtrans")]
)


def test_every_scheme_is_in_one_of_the_suites() -> None:
    by_themselves = {"hmac_sha512", "paypal", "wise", "unsigned", "dlocal"}
    assert {*SENDERS, *UNTIMED, *by_themselves} == {*SCHEMES}


@every_scheme
@pytest.mark.parametrize(("used", "index"), [(NEW, 0), (OLD, 1)])
def test_during_a_rotation_the_check_says_which_secret_fitted(scheme: str, used: bytes, index: int) -> None:
    sent, body = UNTIMED[scheme](used)
    found = check(scheme, sent, NEW, OLD, body=body)
    assert (found.verdict, found.secret_index) == (SignatureVerdict.GENUINE, index)


@every_scheme
def test_no_age_makes_it_too_old(scheme: str) -> None:
    sent, body = UNTIMED[scheme](NEW)
    for now in (0, NOW + 1e9):
        assert check(scheme, sent, NEW, body=body, now=now).verdict is SignatureVerdict.GENUINE


@every_scheme
def test_another_secret_made_no_signature_of_ours(scheme: str) -> None:
    sent, body = UNTIMED[scheme](OLD)
    found = check(scheme, sent, NEW, body=body)
    assert (found.verdict, found.secret_index) == (SignatureVerdict.BAD_SIGNATURE, None)


@every_scheme
def test_every_secret_is_compared_even_after_one_fitted(scheme: str, monkeypatch) -> None:
    compared: list[bool] = []
    compare = hmac.compare_digest

    def watched(left: bytes, right: bytes) -> bool:
        compared.append(compare(left, right))
        return compared[-1]

    monkeypatch.setattr(hmac, "compare_digest", watched)
    sent, body = UNTIMED[scheme](NEW)
    check(scheme, sent, NEW, OLD, body=body)
    assert compared[:2] == [True, False]


@every_scheme
def test_without_secrets_nothing_is_genuine(scheme: str) -> None:
    sent, body = UNTIMED[scheme](NEW)
    found = scheme_named(scheme, NEEDED.get(scheme, {})).check(sent, body, (), NOW, 300)
    assert found.verdict is SignatureVerdict.BAD_SIGNATURE


@every_scheme
@pytest.mark.parametrize("blank", [b"", b" ", b"\n"])
@pytest.mark.parametrize("others", [(), (OLD,)])
def test_an_empty_secret_never_fits(scheme: str, blank: bytes, others: tuple[bytes, ...]) -> None:
    sent, body = UNTIMED[scheme](blank)
    assert check(scheme, sent, blank, *others, body=body).verdict in (
        SignatureVerdict.BAD_SIGNATURE,
        SignatureVerdict.NO_SIGNATURE,
    )


@pytest.mark.parametrize("scheme", ["adyen", "worldpay"])
@pytest.mark.parametrize("unfit", [b"not hex", b"abc", b"00" * 16])
def test_a_key_that_is_not_hex_or_only_noughts_never_fits(scheme: str, unfit: bytes) -> None:
    for signed_with in (b"", b"00" * 16):
        sent, body = UNTIMED[scheme](signed_with)
        assert check(scheme, sent, unfit, body=body).verdict is SignatureVerdict.BAD_SIGNATURE


@over_the_body
def test_one_changed_byte_of_the_body_is_noticed(scheme: str) -> None:
    sent, body = UNTIMED[scheme](NEW)
    place = {"adyen": b"TestMerchant", "braintree": b"bt_payload=PG"}.get(scheme, b"evt_1")
    at = body.index(place) + len(place) - 1
    forged = body[:at] + b"x" + body[at + 1 :]
    assert check(scheme, sent, NEW, body=forged).verdict is SignatureVerdict.BAD_SIGNATURE


@in_a_header
def test_a_header_is_found_whatever_the_case_of_its_name_and_only_once(scheme: str) -> None:
    sent, body = UNTIMED[scheme](NEW)
    shouted: Headers = tuple((name.upper(), value) for name, value in sent)
    assert check(scheme, shouted, NEW, body=body).verdict is SignatureVerdict.GENUINE
    assert check(scheme, sent * 2, NEW, body=body).verdict is SignatureVerdict.MALFORMED


@in_a_header
def test_no_signature_is_said_of_a_request_that_bears_none(scheme: str) -> None:
    ((name, _),), body = UNTIMED[scheme](NEW)
    for sent in ((), ((name, b""),), ((name, b" \t"),)):
        assert check(scheme, sent, NEW, body=body).verdict is SignatureVerdict.NO_SIGNATURE


@in_a_header
def test_a_signature_that_is_cut_or_too_long_never_fits(scheme: str) -> None:
    ((name, value),), body = UNTIMED[scheme](NEW)
    for length in range(len(value)):
        assert check(scheme, ((name, value[:length]),), NEW, body=body).verdict is not SignatureVerdict.GENUINE
    assert check(scheme, ((name, value + b"x" * 8192),), NEW, body=body).verdict is SignatureVerdict.MALFORMED


@every_scheme
def test_no_detail_holds_a_secret_or_a_signature(scheme: str) -> None:
    sent, body = UNTIMED[scheme](NEW)
    for found in (check(scheme, sent, NEW, body=body), check(scheme, sent, OLD, body=body), check(scheme, (), NEW)):
        assert NEW.decode() not in repr(found)
        assert OLD.decode() not in repr(found)
        for _, value in sent:
            assert value[-16:].decode() not in repr(found)
