"""The files of the CA: its certificate, its key (mode 0600), the next pair during a rotation, and the bundle.

Clients get the bundle. It holds the system's roots and ours, because most clients take one file in place of their own.
Services without access to our directory read a copy of it elsewhere. Beside each bundle lie files for Node's fetch,
wget and PHP, because no variable gives them the bundle's path.

A rotation has two steps, so that no client loses its connection. First the next certificate joins the bundle, which
clients load. Then it signs.
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
        """The copy for services, if `publish` was given a path."""
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
        """The authority in force. None if there is none. Raises SettingsError if it cannot be used."""
        return _read(self.certificate, self.key)

    def read_next(self) -> LocalCa | None:
        return _read(self.next_certificate, self.next_key)

    def create_or_extend(self, hosts: Iterable[str], now: datetime) -> LocalCa:
        """A first authority, or the present one bound to other hosts. Its key stays, so clients that trust it keep
        their trust."""
        previous = self.read()
        local_ca = make_local_ca(hosts, now, key=previous.key if previous else None)
        if previous is None:
            _write(self.key, local_ca.key_pem, secret=True)
        _write(self.certificate, local_ca.pem)
        self._write_bundle(local_ca, self.read_next())
        return local_ca

    def publish(self, shared: Path | None = None) -> None:
        """Write the bundle again. From now on also to `shared`, readable by everybody."""
        if shared is not None:
            shared.absolute().parent.mkdir(parents=True, exist_ok=True)
            _write(self._shared_path_file, f"{os.path.abspath(shared)}\n".encode())
        self._write_bundle(self.read(), self.read_next())

    def prepare_next(self, hosts: Iterable[str], now: datetime) -> LocalCa:
        """Make the next authority. It is in the bundle from now on, and signs nothing yet. If it is prepared again it
        keeps its key, so clients that have loaded it keep their trust."""
        previous = self.read_next()
        prepared = make_local_ca(hosts, now, key=previous.key if previous else None)
        if previous is None:
            _write(self.next_key, prepared.key_pem, secret=True)
        _write(self.next_certificate, prepared.pem)
        self._write_bundle(self.read(), prepared)
        return prepared

    def activate_next(self) -> LocalCa:
        """Let the next authority sign. The bundle keeps the previous one until the next rotation, because its leaves
        live for a day."""
        previous: LocalCa | None = None
        # otherwise an earlier run was interrupted half-way
        if self.next_key.exists() or not self.next_certificate.exists():
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
    """The file that makes Node's fetch use HTTPS_PROXY: see `node_proxy.cjs` in this room."""
    return bundle.with_name(_NODE_PROXY.name)


def wgetrc_beside(bundle: Path) -> Path:
    return bundle.with_name("paywitness.wgetrc")


def php_folder_beside(bundle: Path) -> Path:
    """A directory with settings that PHP reads after its own."""
    return bundle.with_name("paywitness-php.d")


class CurrentLocalCa:
    """The authority that signs now. After `paywitness ca` has changed it on disk, the next connection uses the new
    one."""

    def __init__(self, files: LocalCaFiles) -> None:
        self._files = files
        self._local_ca: LocalCa | None = None
        self._seen_mtimes = self._mtimes()
        self._local_ca = files.read()  # raises if it cannot be used: better at the start than at the first call

    def __call__(self) -> LocalCa | None:
        mtimes = self._mtimes()
        if mtimes != self._seen_mtimes:
            self._seen_mtimes = mtimes
            try:
                self._local_ca = self._files.read()
            except SettingsError as error:
                _log.error("%s; the previous one stays in force", error)
        return self._local_ca

    def _mtimes(self) -> tuple[int, int]:
        """The modification times of both files; zeros if one of them is missing."""
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
    """The roots that this machine trusts, as one file of certificates. Empty if it has none."""
    found = ssl.get_default_verify_paths().cafile or ssl.get_default_verify_paths().openssl_cafile
    path = Path(found)
    return path.read_bytes() if path.is_file() else b""


def _write(path: Path, content: bytes, *, secret: bool = False) -> None:
    """Write a file as a whole or not at all. A secret is never readable by others, not even for a moment."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary_path = path.with_name(f"{path.name}.new")
    temporary_path.unlink(missing_ok=True)
    descriptor = os.open(temporary_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, 0o600 if secret else 0o644)  # whatever the process's umask is
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary_path.replace(path)


# --- Shell lines
# Shell lines that make each kind of client use the sidecar as its proxy and trust its authority.


def shell_lines(proxy: str, no_proxy: str, bundle: Path) -> list[str]:
    """Assignments for most clients, and comments for those with root certificates of their own."""
    quoted_bundle = quote(str(bundle))
    node_proxy = str(node_proxy_beside(bundle))
    preload = f'"{node_proxy}"' if " " in node_proxy else node_proxy  # Node parses it so
    host, _, port = proxy.removeprefix("http://").rpartition(":")
    return [
        f"export HTTPS_PROXY={quote(proxy)} https_proxy={quote(proxy)}",
        f"export HTTP_PROXY={quote(proxy)} http_proxy={quote(proxy)}",
        f"export NO_PROXY={quote(no_proxy)} no_proxy={quote(no_proxy)}",
        f"export SSL_CERT_FILE={quoted_bundle}        # OpenSSL: urllib, httpx, aiohttp, Go, Ruby, HTTP::Tiny",
        f"export REQUESTS_CA_BUNDLE={quoted_bundle}   # requests, and the SDKs upon it",
        f"export CURL_CA_BUNDLE={quoted_bundle}",
        f"export NODE_EXTRA_CA_CERTS={quoted_bundle}  # Node adds it to its own roots",
        "export NODE_USE_ENV_PROXY=1            # Node 24 and 22.21: fetch and https use HTTPS_PROXY",
        f'export NODE_OPTIONS="${{NODE_OPTIONS:+$NODE_OPTIONS }}"{quote(f"--require={preload}")}  # older ones: fetch',
        f"export GIT_SSL_CAINFO={quoted_bundle} AWS_CA_BUNDLE={quoted_bundle}",
        f"export PERL_LWP_SSL_CA_FILE={quoted_bundle} PERL_LWP_ENV_PROXY=1   # Perl's LWP",
        f"export WGETRC={quote(str(wgetrc_beside(bundle)))}   # wget; in place of your own ~/.wgetrc",
        f'export PHP_INI_SCAN_DIR="${{PHP_INI_SCAN_DIR-}}":{quote(str(php_folder_beside(bundle)))}  # PHP',
        "# These have root certificates of their own; each needs a line of code or a setting:",
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
