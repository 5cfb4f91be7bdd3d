"""The authority vouches for its policies' hosts and for nothing else: judged by OpenSSL, as clients would."""

from __future__ import annotations

import os
import ssl
import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from paywitness.cli.ca import ca
from paywitness.core.errors import SettingsError
from paywitness.transparent.ca_files import LocalCaFiles
from paywitness.transparent.local_ca import (
    HostCertificates,
    LocalCa,
    load_local_ca,
    make_host_certificate,
    make_local_ca,
    permitted_names,
)

NOW = datetime.now(UTC)


class StandingClock:
    """A wall clock that stands where it is put."""

    def __init__(self, now: datetime = NOW) -> None:
        self.at = now

    def now(self) -> float:
        return self.at.timestamp()

    def mono(self) -> float:
        return 0.0

    def boot(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("nobody sleeps here")


def shake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> None:
    """A whole handshake in memory. Raises what the client says against it."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = server.wrap_bio(to_server, to_client, server_side=True)
    theirs = client.wrap_bio(to_client, to_server, server_hostname=name)
    done = {"ours": False, "theirs": False}
    for _ in range(10):
        for who, side in (("theirs", theirs), ("ours", ours)):
            try:
                side.do_handshake()
                done[who] = True
            except ssl.SSLWantReadError:
                pass
        if all(done.values()):
            return
    raise AssertionError("the handshake does not end")


def trusting(*authorities: LocalCa) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata="".join(authority.pem.decode() for authority in authorities))
    context.set_alpn_protocols(["h2", "http/1.1"])
    return context


def leaves(authority: LocalCa, clock: StandingClock | None = None) -> HostCertificates:
    return HostCertificates(lambda: authority, clock or StandingClock())


def test_a_host_of_a_policy_is_believed() -> None:
    authority = make_local_ca(["api.acme.test"], NOW)
    context = leaves(authority).context_for("api.acme.test")
    assert context is not None
    shake(context, trusting(authority), "api.acme.test")


def test_only_http_1_is_agreed_on() -> None:
    authority = make_local_ca(["api.acme.test"], NOW)
    context = leaves(authority).context_for("api.acme.test")
    assert context is not None
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    theirs = trusting(authority).wrap_bio(to_client, to_server, server_hostname="api.acme.test")
    ours = context.wrap_bio(to_server, to_client, server_side=True)
    for side in (theirs, ours, theirs, ours):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            pass
    assert theirs.selected_alpn_protocol() == "http/1.1"


def test_no_other_host_gets_a_certificate() -> None:
    found = leaves(make_local_ca(["api.acme.test"], NOW))
    assert found.context_for("bank.test") is None
    assert found.context_for("xapi.acme.test") is None
    assert HostCertificates(lambda: None, StandingClock()).context_for("api.acme.test") is None


@pytest.mark.parametrize("host", ["bank.test", "acme.test", "other.acme.test"])
def test_a_certificate_made_for_another_host_is_refused_by_clients(host: str) -> None:
    """Whoever stole the key could make one: the authority's own certificate forbids it."""
    authority = make_local_ca(["api.acme.test"], NOW)
    forged = LocalCa(make_local_ca([host], NOW, key=authority.key).certificate, authority.key)
    context = leaves(forged).context_for(host)
    assert context is not None
    with pytest.raises(ssl.SSLCertVerificationError, match="permitted subtree violation"):
        shake(context, trusting(authority), host)


def test_a_certificate_for_an_address_is_refused_by_clients() -> None:
    import ipaddress

    from cryptography.hazmat.primitives import hashes, serialization

    authority = make_local_ca(["api.acme.test"], NOW)
    key = ec.generate_private_key(ec.SECP256R1())
    forged = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([]))
        .issuer_name(authority.certificate.subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(NOW - timedelta(hours=1))
        .not_valid_after(NOW + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("10.0.0.1"))]), critical=True)
        .sign(authority.key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    descriptor = os.memfd_create("forged")
    os.write(descriptor, forged.public_bytes(serialization.Encoding.PEM) + private)
    context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    os.close(descriptor)
    with pytest.raises(ssl.SSLCertVerificationError, match="excluded subtree violation"):
        shake(context, trusting(authority), "10.0.0.1")


def test_another_name_on_the_connection_is_refused() -> None:
    authority = make_local_ca(["api.acme.test", "api.globex.test"], NOW)
    context = leaves(authority).context_for("api.acme.test")
    assert context is not None
    with pytest.raises(ssl.SSLError, match=r"(?i)unrecognized.name|callback failed"):
        shake(context, trusting(authority), "api.globex.test")


def test_a_leaf_lives_a_day_and_is_made_again_at_noon() -> None:
    clock = StandingClock()
    authority = make_local_ca(["api.acme.test"], NOW)
    made = leaves(authority, clock)
    first = made.context_for("api.acme.test")
    assert make_host_certificate(authority, "api.acme.test", authority.key, NOW).ends_at == NOW + timedelta(days=1)
    clock.at = NOW + timedelta(hours=11)
    assert made.context_for("api.acme.test") is first
    clock.at = NOW + timedelta(hours=13)
    assert made.context_for("api.acme.test") is not first


def test_wildcards_are_covered_by_what_they_stand_below() -> None:
    assert permitted_names(["*-checkout-live.adyenpayments.com", "*.acme.test", "api.acme.test"]) == (
        "acme.test",
        "adyenpayments.com",
        "api.acme.test",
    )
    authority = make_local_ca(["*-live.acme.test"], NOW)
    context = leaves(authority).context_for("shop-live.acme.test")
    assert context is not None
    shake(context, trusting(authority), "shop-live.acme.test")


def test_without_hosts_there_is_no_authority() -> None:
    """One without names would be one for every name."""
    with pytest.raises(SettingsError, match="nothing to vouch for"):
        make_local_ca([], NOW)


class TestFiles:
    @pytest.fixture
    def files(self, tmp_path: Path) -> LocalCaFiles:
        return LocalCaFiles(tmp_path / "home")

    def test_the_key_is_its_owners_alone(self, files: LocalCaFiles) -> None:
        files.create_or_extend(["api.acme.test"], NOW)
        assert stat.S_IMODE(files.key.stat().st_mode) == 0o600
        assert b"PRIVATE" not in files.certificate.read_bytes() + files.bundle.read_bytes()
        files.key.chmod(0o640)
        with pytest.raises(SettingsError, match="can be read by others"):
            files.read()

    def test_what_was_written_is_read_again(self, files: LocalCaFiles) -> None:
        assert files.read() is None
        made = files.create_or_extend(["api.acme.test"], NOW)
        read = files.read()
        assert read is not None
        assert read.fingerprint == made.fingerprint

    def test_another_host_keeps_the_key_and_those_who_trusted_it(self, files: LocalCaFiles) -> None:
        before = files.create_or_extend(["api.acme.test"], NOW)
        after = files.create_or_extend(["api.acme.test", "api.globex.test"], NOW)
        context = leaves(after).context_for("api.acme.test")
        assert context is not None
        shake(context, trusting(before), "api.acme.test")  # by the bundle it had
        new = leaves(after).context_for("api.globex.test")
        assert new is not None
        with pytest.raises(ssl.SSLCertVerificationError):
            shake(new, trusting(before), "api.globex.test")
        shake(new, ssl.create_default_context(cafile=str(files.bundle)), "api.globex.test")

    def test_a_rotation_cuts_nobody_off(self, files: LocalCaFiles) -> None:
        before = files.create_or_extend(["api.acme.test"], NOW)
        prepared = files.prepare_next(["api.acme.test"], NOW)
        in_force = files.read()
        assert in_force is not None
        assert in_force.fingerprint == before.fingerprint != prepared.fingerprint
        loaded = ssl.create_default_context(cafile=str(files.bundle))  # a client, once it took the new bundle
        after = files.activate_next()
        assert after.fingerprint == prepared.fingerprint
        assert stat.S_IMODE(files.key.stat().st_mode) == 0o600
        for authority in (before, after):
            context = leaves(authority).context_for("api.acme.test")
            assert context is not None
            shake(context, loaded, "api.acme.test")
        with pytest.raises(SettingsError, match="no next authority"):
            files.activate_next()

    def test_a_rotation_prepared_twice_keeps_those_who_have_loaded_it(self, files: LocalCaFiles) -> None:
        files.create_or_extend(["api.acme.test"], NOW)
        files.prepare_next(["api.acme.test"], NOW)
        loaded = ssl.create_default_context(cafile=str(files.bundle))
        files.prepare_next(["api.acme.test"], NOW)
        context = leaves(files.activate_next()).context_for("api.acme.test")
        assert context is not None
        shake(context, loaded, "api.acme.test")

    def test_a_rotation_that_was_broken_off_is_finished(self, files: LocalCaFiles) -> None:
        files.create_or_extend(["api.acme.test"], NOW)
        prepared = files.prepare_next(["api.acme.test"], NOW)
        files.next_key.replace(files.key)  # and then the power went
        with pytest.raises(SettingsError, match="not of one pair"):
            files.read()
        assert files.activate_next().fingerprint == prepared.fingerprint
        in_force = files.read()
        assert in_force is not None
        assert in_force.fingerprint == prepared.fingerprint
        assert files.read_next() is None

    def test_the_command_names_what_services_may_read(self, files: LocalCaFiles, tmp_path: Path) -> None:
        shared = tmp_path / "shared" / "bundle.pem"
        policies = str(Path(__file__).resolve().parents[2] / "policies")
        where = ["--home", str(files.home)]
        for said in ("The authority was made.", "it was not changed."):
            done = CliRunner().invoke(ca, ["init", *where, "--policies", policies, "--bundle", str(shared)])
            assert (done.exit_code, said in done.output) == (0, True)
        told = CliRunner().invoke(ca, ["env", *where]).output
        assert f"export SSL_CERT_FILE={shared}" in told
        assert f"--require={shared.parent}/node_proxy.cjs" in told
        assert str(files.home) not in told

    def test_a_shared_bundle_is_readable_and_kept_in_step(self, files: LocalCaFiles, tmp_path: Path) -> None:
        before = os.umask(0o077)
        try:
            files.create_or_extend(["api.acme.test"], NOW)
            shared = tmp_path / "shared" / "bundle.pem"
            shared.parent.mkdir(mode=0o755)
            files.publish(shared)
            assert files.bundle_for_services == shared
            steps: list[Callable[[], object]] = [
                lambda: files.create_or_extend(["api.acme.test", "api.globex.test"], NOW),
                lambda: files.prepare_next(["api.acme.test"], NOW),
                files.activate_next,
                files.publish,
            ]
            for step in steps:
                shared.unlink()
                step()
                assert shared.read_bytes() == files.bundle.read_bytes()
                assert stat.S_IMODE(shared.stat().st_mode) == 0o644
        finally:
            os.umask(before)
        assert shared.with_name("node_proxy.cjs").is_file()
        beside = {"bundle.pem", "node_proxy.cjs", "paywitness.wgetrc", "paywitness-php.d"}
        assert {path.name for path in shared.parent.iterdir()} == beside  # no key
        settings = shared.with_name("paywitness-php.d")
        assert [stat.S_IMODE(path.stat().st_mode) for path in (settings, settings / "paywitness.ini")] == [0o755, 0o644]

    def test_the_bundle_trusts_what_the_system_trusts(self, files: LocalCaFiles) -> None:
        files.create_or_extend(["api.acme.test"], NOW)
        system = ssl.create_default_context().get_ca_certs()
        ours = ssl.create_default_context(cafile=str(files.bundle)).get_ca_certs()
        assert len(ours) == len(system) + 1

    def test_a_broken_one_is_told_and_never_replaced(self, files: LocalCaFiles) -> None:
        files.create_or_extend(["api.acme.test"], NOW)
        files.key.write_text("not a key")
        with pytest.raises(SettingsError, match="cannot be used"):
            files.create_or_extend(["api.acme.test"], NOW)
        assert files.key.read_text() == "not a key"

    def test_an_authority_without_names_is_not_taken(self, files: LocalCaFiles) -> None:
        made = make_local_ca(["api.acme.test"], NOW)
        other = ec.generate_private_key(ec.SECP256R1())
        with pytest.raises(ValueError, match="not of one pair"):
            load_local_ca(made.pem, LocalCa(made.certificate, other).key_pem)
