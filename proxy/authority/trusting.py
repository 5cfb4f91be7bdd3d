"""What makes each kind of client use the sidecar as its proxy and believe its authority. Lines for a shell."""

from __future__ import annotations

from pathlib import Path
from shlex import quote


def lines_for(proxy: str, no_proxy: str, bundle: Path, node_proxy: Path) -> list[str]:
    """Assignments that serve most clients, and comments for those that bring roots of their own."""
    whole = quote(str(bundle))
    preload = f'"{node_proxy}"' if " " in str(node_proxy) else str(node_proxy)  # as Node takes it apart
    return [
        f"export HTTPS_PROXY={quote(proxy)} https_proxy={quote(proxy)}",
        f"export HTTP_PROXY={quote(proxy)} http_proxy={quote(proxy)}",
        f"export NO_PROXY={quote(no_proxy)} no_proxy={quote(no_proxy)}",
        f"export SSL_CERT_FILE={whole}        # OpenSSL: urllib, httpx, aiohttp, Go, Ruby",
        f"export REQUESTS_CA_BUNDLE={whole}   # requests, and the SDKs upon it",
        f"export CURL_CA_BUNDLE={whole}",
        f"export NODE_EXTRA_CA_CERTS={whole}  # Node adds it to its own roots",
        "export NODE_USE_ENV_PROXY=1            # Node 24 and 22.21: fetch and https look at HTTPS_PROXY",
        f'export NODE_OPTIONS="${{NODE_OPTIONS:+$NODE_OPTIONS }}"{quote(f"--require={preload}")}  # before: fetch does',
        f"export GIT_SSL_CAINFO={whole} AWS_CA_BUNDLE={whole}",
        "# These bring roots of their own; each needs a line of code or a setting:",
        f"#   stripe (Python)     stripe.ca_bundle_path = {str(bundle)!r}",
        f"#   braintree (Python)  Environment.Production.ssl_certificate = {str(bundle)!r}",
        f"#   razorpay (Python)   client.cert_path = {str(bundle)!r}",
        f"#   xendit (Python)     configuration.ssl_ca_cert = {str(bundle)!r}; configuration.proxy = {proxy!r}",
        "#   aiohttp             ClientSession(trust_env=True)",
        "#   Node's https module, before 24 and 22.21: https-proxy-agent as the agent",
        "#   Java                paywitness ca show --pem > paywitness.pem",
        "#                       keytool -importcert -noprompt -alias paywitness -file paywitness.pem \\",
        "#                         -keystore paywitness.p12 -storetype PKCS12 -storepass changeit",
        "#                       java -Djavax.net.ssl.trustStore=paywitness.p12 \\",
        "#                         -Djavax.net.ssl.trustStorePassword=changeit \\",
        f"#                         -Dhttps.proxyHost={_host(proxy)} -Dhttps.proxyPort={proxy.rpartition(':')[2]} ...",
    ]


def _host(proxy: str) -> str:
    return proxy.removeprefix("http://").rpartition(":")[0]
