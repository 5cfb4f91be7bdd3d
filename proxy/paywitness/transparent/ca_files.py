"""Where the CA is stored: its certificate, its key (mode 0600), the next pair while it is changed, and the bundle.

The bundle is what clients are given: the system's roots and ours, for most of them take one file in place of their own.
Services that may not look into our directory read a copy of it elsewhere; beside each lies what Node's fetch, wget and
PHP need, which no variable can tell where the bundle is.
A rotation has two steps, so that nobody is cut off: first the next certificate joins the bundle, which clients load;
then it signs.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from shlex import quote

from paywitness.core.errors import SettingsError
from paywitness.transparent.local_ca import LocalCa, load_local_ca, make_local_ca

_log = logging.getLogger("paywitness.authority")
_NODE_PROXY = Path(__file__).with_name("node_proxy.cjs")


@dataclass(frozen=True, slots=True)
class LocalCaFiles:
    home: Path

    @property
    def certificate(self) -> Path:
        return self.home / "ca.pem"

    @property
    def key(self) -> Path:
        return self.home / "ca.key"

    @property
    def next_certificate(self) -> Path:
        return self.home / "ca-next.pem"

    @property
    def next_key(self) -> Path:
        return self.home / "ca-next.key"

    @property
    def bundle(self) -> Path:
        return self.home / "ca-bundle.pem"

    @property
    def shared_bundle(self) -> Path | None:
        """The copy for services, where one was asked for."""
        try:
            return Path(self._shared_path_file.read_text().strip())
        except FileNotFoundError:
            return None

    @property
    def bundle_for_services(self) -> Path:
        return self.shared_bundle or Path(os.path.abspath(self.bundle))

    @property
    def _shared_path_file(self) -> Path:
        return self.home / "ca-shared-at"

    def read(self) -> LocalCa | None:
        """The authority in force; None where there is none. Raises SettingsError where it cannot be used."""
        return _read(self.certificate, self.key)

    def read_next(self) -> LocalCa | None:
        return _read(self.next_certificate, self.next_key)

    def create_or_extend(self, hosts: Iterable[str], now: datetime) -> LocalCa:
        """The first one, or the same one again for other hosts: its key stays, so whoever trusted it goes on."""
        previous = self.read()
        local_ca = make_local_ca(hosts, now, key=previous.key if previous else None)
        if previous is None:
            _write(self.key, local_ca.key_pem, secret=True)
        _write(self.certificate, local_ca.pem)
        self._write_bundle(local_ca, self.read_next())
        return local_ca

    def publish(self, shared: Path | None = None) -> None:
        """Write the bundle anew; from now on also to `shared`, for everybody to read."""
        if shared is not None:
            shared.absolute().parent.mkdir(parents=True, exist_ok=True)
            _write(self._shared_path_file, f"{os.path.abspath(shared)}\n".encode())
        self._write_bundle(self.read(), self.read_next())

    def prepare_next(self, hosts: Iterable[str], now: datetime) -> LocalCa:
        """The next one: in the bundle from now on, signing nothing yet. Prepared again it keeps its key, so whoever has
        loaded it goes on."""
        previous = self.read_next()
        prepared = make_local_ca(hosts, now, key=previous.key if previous else None)
        if previous is None:
            _write(self.next_key, prepared.key_pem, secret=True)
        _write(self.next_certificate, prepared.pem)
        self._write_bundle(self.read(), prepared)
        return prepared

    def activate_next(self) -> LocalCa:
        """The next one signs. The one before stays in the bundle until the next change: its leaves live for a day."""
        previous: LocalCa | None = None
        if self.next_key.exists() or not self.next_certificate.exists():  # else it was broken off half-way, before
            previous, prepared = self.read(), self.read_next()
            if prepared is None:
                raise SettingsError("there is no next authority: prepare one first, with paywitness ca rotate")
            self.next_key.replace(self.key)
        self.next_certificate.replace(self.certificate)
        current = self.read()
        assert current is not None
        self._write_bundle(current, previous)
        return current

    def _write_bundle(self, *local_cas: LocalCa | None) -> None:
        ours = [local_ca.pem for local_ca in local_cas if local_ca is not None]
        bundle_pem = b"".join([*ours, _system_roots()])
        for bundle in filter(None, (self.bundle, self.shared_bundle)):
            _write(bundle, bundle_pem)
            _write(node_proxy_beside(bundle), _NODE_PROXY.read_bytes())
            _write(wgetrc_beside(bundle), f"ca_certificate = {bundle.absolute()}\n".encode())
            php_settings = "".join(f'{setting} = "{bundle.absolute()}"\n' for setting in _PHP_SETTINGS)
            _write(php_folder_beside(bundle) / "paywitness.ini", php_settings.encode())
            php_folder_beside(bundle).chmod(0o755)


_PHP_SETTINGS = ("curl.cainfo", "openssl.cafile")  # of its curl, and of its streams


def node_proxy_beside(bundle: Path) -> Path:
    """What makes Node's fetch look at HTTPS_PROXY: see `node_proxy.cjs` in this room."""
    return bundle.with_name(_NODE_PROXY.name)


def wgetrc_beside(bundle: Path) -> Path:
    return bundle.with_name("paywitness.wgetrc")


def php_folder_beside(bundle: Path) -> Path:
    """A folder of settings that PHP reads after its own."""
    return bundle.with_name("paywitness-php.d")


class CurrentLocalCa:
    """The authority that signs now. Changed on disk, by `paywitness ca`, it is taken over with the next connection."""

    def __init__(self, files: LocalCaFiles) -> None:
        self._files = files
        self._local_ca: LocalCa | None = None
        self._seen_mtimes = self._mtimes()
        self._local_ca = files.read()  # raises where it cannot be used: better at the start than at the first call

    def __call__(self) -> LocalCa | None:
        mtimes = self._mtimes()
        if mtimes != self._seen_mtimes:
            self._seen_mtimes = mtimes
            try:
                self._local_ca = self._files.read()
            except SettingsError as error:
                _log.error("%s; the one before stays in force", error)
        return self._local_ca

    def _mtimes(self) -> tuple[int, int]:
        """Of which moment the files are; both must be there for a pair."""
        try:
            return self._files.certificate.stat().st_mtime_ns, self._files.key.stat().st_mtime_ns
        except OSError:
            return 0, 0


def _read(certificate: Path, key: Path) -> LocalCa | None:
    if not certificate.exists() and not key.exists():
        return None
    try:
        if key.stat().st_mode & 0o077:
            raise SettingsError(f"{key} can be read by others: chmod 600 {key}, and rotate if others may have read it")
        return load_local_ca(certificate.read_bytes(), key.read_bytes())
    except (OSError, ValueError) as error:
        detail = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise SettingsError(f"the authority in {certificate.parent} cannot be used: {detail}") from None


def _system_roots() -> bytes:
    """What this machine trusts, as one file of certificates; empty where it has none."""
    found = ssl.get_default_verify_paths().cafile or ssl.get_default_verify_paths().openssl_cafile
    path = Path(found)
    return path.read_bytes() if path.is_file() else b""


def _write(path: Path, content: bytes, *, secret: bool = False) -> None:
    """Whole or not at all, and a secret never readable by others, not even for a moment."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary_path = path.with_name(f"{path.name}.new")
    temporary_path.unlink(missing_ok=True)
    descriptor = os.open(temporary_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, 0o600 if secret else 0o644)  # whatever the mask of this process is
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary_path.replace(path)


# --- Shell lines
# What makes each kind of client use the sidecar as its proxy and believe its authority. Lines for a shell.


def shell_lines(proxy: str, no_proxy: str, bundle: Path) -> list[str]:
    """Assignments that serve most clients, and comments for those that bring roots of their own."""
    quoted_bundle = quote(str(bundle))
    node_proxy = str(node_proxy_beside(bundle))
    preload = f'"{node_proxy}"' if " " in node_proxy else node_proxy  # as Node takes it apart
    host, _, port = proxy.removeprefix("http://").rpartition(":")
    return [
        f"export HTTPS_PROXY={quote(proxy)} https_proxy={quote(proxy)}",
        f"export HTTP_PROXY={quote(proxy)} http_proxy={quote(proxy)}",
        f"export NO_PROXY={quote(no_proxy)} no_proxy={quote(no_proxy)}",
        f"export SSL_CERT_FILE={quoted_bundle}        # OpenSSL: urllib, httpx, aiohttp, Go, Ruby, HTTP::Tiny",
        f"export REQUESTS_CA_BUNDLE={quoted_bundle}   # requests, and the SDKs upon it",
        f"export CURL_CA_BUNDLE={quoted_bundle}",
        f"export NODE_EXTRA_CA_CERTS={quoted_bundle}  # Node adds it to its own roots",
        "export NODE_USE_ENV_PROXY=1            # Node 24 and 22.21: fetch and https look at HTTPS_PROXY",
        f'export NODE_OPTIONS="${{NODE_OPTIONS:+$NODE_OPTIONS }}"{quote(f"--require={preload}")}  # before: fetch does',
        f"export GIT_SSL_CAINFO={quoted_bundle} AWS_CA_BUNDLE={quoted_bundle}",
        f"export PERL_LWP_SSL_CA_FILE={quoted_bundle} PERL_LWP_ENV_PROXY=1   # Perl's LWP",
        f"export WGETRC={quote(str(wgetrc_beside(bundle)))}   # wget; in place of your own ~/.wgetrc",
        f'export PHP_INI_SCAN_DIR="${{PHP_INI_SCAN_DIR-}}":{quote(str(php_folder_beside(bundle)))}  # PHP',
        "# These bring roots of their own; each needs a line of code or a setting:",
        f"#   stripe (Python)     stripe.ca_bundle_path = {str(bundle)!r}",
        f"#   braintree (Python)  Environment.Production.ssl_certificate = {str(bundle)!r}",
        f"#   razorpay (Python)   client.cert_path = {str(bundle)!r}",
        f"#   xendit (Python)     configuration.ssl_ca_cert = {str(bundle)!r}; configuration.proxy = {proxy!r}",
        "#   aiohttp             ClientSession(trust_env=True)",
        "#   Node's https module, before 24 and 22.21: https-proxy-agent as the agent",
        "#   PHP's streams       stream_context_create(['http' => ['proxy' => "
        f"'tcp://{host}:{port}', 'request_fulluri' => true]])",
        "#   Java                paywitness ca show --pem > paywitness.pem",
        "#                       keytool -importcert -noprompt -alias paywitness -file paywitness.pem \\",
        "#                         -keystore paywitness.p12 -storetype PKCS12 -storepass changeit",
        "#                       java -Djavax.net.ssl.trustStore=paywitness.p12 \\",
        "#                         -Djavax.net.ssl.trustStorePassword=changeit \\",
        f"#                         -Dhttps.proxyHost={host} -Dhttps.proxyPort={port} \\",
        f"#                         -Dhttp.proxyHost={host} -Dhttp.proxyPort={port} ...",
    ]
