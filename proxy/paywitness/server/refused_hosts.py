"""Log lines about callers that cannot reach a host because of their configuration. Each line says how to repair it.

One line for each host and minute. Of a request only the host's name is ever logged, and only if it is a valid name.
"""

from __future__ import annotations

import logging
import re
import ssl

from paywitness.repeated_lines import repeats

_log = logging.getLogger("paywitness.server")

_HOST_NAME = re.compile(r"[0-9A-Za-z_.:\[\]-]{1,253}\Z")
# TLS alerts by which a client refuses our certificate. The text before the alert's name differs by OpenSSL version.
_CERTIFICATE_ALERTS = {
    "UNKNOWN_CA": "unknown CA",
    "BAD_CERTIFICATE": "bad certificate",
    "CERTIFICATE_UNKNOWN": "certificate unknown",
    "CERTIFICATE_EXPIRED": "certificate expired",
    "UNSUPPORTED_CERTIFICATE": "unsupported certificate",
    "DECRYPT_ERROR": "decrypt error",
    "DECRYPTION_FAILED": "decrypt error",
}
_OTHER_KEY = frozenset({"decrypt error"})  # it trusts an authority of our name, with another key

# The beginning of a client's User-Agent, and the line of `paywitness ca env` that it needs. The User-Agent itself is
# never logged.
_LINES_OF_CLIENTS = (
    ("curl/", "CURL_CA_BUNDLE"),
    ("wget/", "WGETRC"),
    ("go-http-client/", "SSL_CERT_FILE"),
    ("ruby", "SSL_CERT_FILE"),
    ("python-httpx/", "SSL_CERT_FILE"),
    ("python-requests/", "REQUESTS_CA_BUNDLE"),
    ("python-urllib", "SSL_CERT_FILE"),
    ("node", "NODE_EXTRA_CA_CERTS"),
    ("libwww-perl/", "PERL_LWP_SSL_CA_FILE"),
    ("guzzlehttp/", "PHP_INI_SCAN_DIR"),
    ("php", "PHP_INI_SCAN_DIR"),
    ("git/", "GIT_SSL_CAINFO"),
    ("java", "-Djavax.net.ssl.trustStore"),
)
_EVERY_LINE = (
    "SSL_CERT_FILE (OpenSSL, Go, Ruby), REQUESTS_CA_BUNDLE (Python's requests), CURL_CA_BUNDLE, NODE_EXTRA_CA_CERTS, "
    "PHP_INI_SCAN_DIR or, for Java and SDKs with roots of their own, what its comments say"
)


def log_refused_certificate(host: str, error: Exception, user_agent: str = "") -> None:
    """Log a failed handshake, if it failed because the caller refused our certificate."""
    alert = _certificate_alert(error)
    if alert is None:
        return
    if alert in _OTHER_KEY:
        cure = "it trusts an authority of ours that is no longer in force: restart it with the bundle of `ca env`"
    else:
        cure = f"its environment lacks what `paywitness ca env` prints for it: {_line_for(user_agent)}"
    name = _name(host)
    _log.warning("a caller refused our certificate for %s (%s): %s", name, alert, cure, extra=repeats(name))


def log_unlisted_host(host: str, *, can_tunnel: bool = True) -> None:
    """A caller asked for a host that no policy names, and was refused. Plain HTTP cannot be tunnelled."""
    tunnel = ", let such hosts pass unread with --unlisted tunnel (PAYWITNESS_UNLISTED)" if can_tunnel else ""
    cure = f"add it to `hosts:` of its provider's policy{tunnel}, or name it in the caller's NO_PROXY"
    name = _name(host)
    _log.warning("403: a caller asked for %s, which no policy names: %s", name, cure, extra=repeats(name))


def _certificate_alert(error: Exception) -> str | None:
    reason = getattr(error, "reason", None) if isinstance(error, ssl.SSLError) else None
    return _CERTIFICATE_ALERTS.get(str(reason).rpartition("ALERT_")[2]) if reason else None


def _line_for(user_agent: str) -> str:
    began = user_agent.lower()
    return next((line for start, line in _LINES_OF_CLIENTS if began.startswith(start)), _EVERY_LINE)


def _name(host: str) -> str:
    return host if _HOST_NAME.match(host) else "a host without a proper name"
