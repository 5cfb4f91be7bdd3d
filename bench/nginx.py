"""nginx + Lua with the same two scripts, to the same Redis and the same provider: what "two scripts and a proxy" cost
where the proxy is written in C. One process, as the other proxies are.
"""

from __future__ import annotations

import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path

from bench.capture import Argument, Captured
from bench.processes import NotMeasured, Secured, Started, free_port, start

_PREFIX = b"nginx:{j}:"  # keys of its own, in the Redis that Paywitness uses too
_PACKAGES = "nginx, libnginx-mod-http-lua, lua-nginx-redis"
_CONFIGURATION = """\
load_module modules/ndk_http_module.so;
load_module modules/ngx_http_lua_module.so;
daemon off;
master_process off;
pid nginx.pid;
error_log nginx.log error;
events {{ worker_connections 1024; }}
http {{
  access_log off;
  server_tokens off;
  client_body_temp_path body;
  proxy_temp_path proxied;
  fastcgi_temp_path fastcgi;
  uwsgi_temp_path uwsgi;
  scgi_temp_path scgi;
  client_body_buffer_size 16k;
  keepalive_requests 100000000;
  lua_package_path "{folder}/?.lua;{bench}/?.lua;/usr/share/lua/5.1/?.lua;;";
  upstream provider {{
    server 127.0.0.1:{provider};
    keepalive 256;
    keepalive_requests 100000000;
  }}
  server {{
    listen 127.0.0.1:{port} backlog=1024;
    location /v1/ {{
      content_by_lua_block {{ require("two_scripts").carry() }}
    }}
    location /provider/ {{
      internal;
      proxy_pass {scheme}://provider/;{trust}
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_set_header Host $host;
    }}
  }}
}}
"""


_TRUST = """
      proxy_ssl_protocols TLSv1.3;
      proxy_ssl_trusted_certificate {roots};
      proxy_ssl_verify on;
      proxy_ssl_name localhost;
      proxy_ssl_server_name on;"""


def start_nginx(
    stack: ExitStack,
    scratch: Path,
    provider: Started,
    redis: Started,
    captured: Captured,
    secured: Secured | None = None,
) -> Started:
    """Start it, or say why it cannot be measured here."""
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if program is None:
        raise NotMeasured(f"nginx is not installed ({_PACKAGES})")
    folder = scratch / "nginx"
    folder.mkdir()
    (folder / "modules").symlink_to(_modules_of(program))
    (folder / "captured.lua").write_bytes(_lua_of(redis, captured))
    port = free_port()
    configuration = folder / "nginx.conf"
    bench = Path(__file__).resolve().parent
    configuration.write_text(
        _CONFIGURATION.format(
            folder=folder,
            bench=bench,
            provider=provider.port,
            port=port,
            scheme="https" if secured else "http",
            trust=_TRUST.format(roots=secured.roots) if secured else "",
        )
    )
    command = [program, "-p", str(folder), "-c", str(configuration), "-e", str(folder / "nginx.log")]
    checked = subprocess.run([*command, "-t"], capture_output=True, text=True, check=False)
    if checked.returncode != 0:
        problem = next((line for line in checked.stderr.splitlines() if "[emerg]" in line), checked.stderr[-300:])
        raise NotMeasured(f"nginx does not take the configuration ({_PACKAGES} are needed): {problem.strip()}")
    return start(stack, "nginx", port, command, folder, folder / "output.log")


def version_of_nginx() -> str:
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if program is None:
        return "none"
    said = subprocess.run([program, "-v"], capture_output=True, text=True, check=False).stderr
    return said.strip().rpartition("/")[2]


def _modules_of(program: str) -> str:
    built = subprocess.run([program, "-V"], capture_output=True, text=True, check=False).stderr
    return next(
        (word.partition("=")[2] for word in built.split() if word.startswith("--modules-path=")),
        "/usr/lib/nginx/modules",
    )


def _lua_of(redis: Started, captured: Captured) -> bytes:
    claim, record = captured.templates()
    lines = [b"return {", b"port = %d," % redis.port]
    for name, template in ((b"claim", claim), (b"record", record)):
        ours: list[Argument] = [template[0], template[1], [_PREFIX], *template[3:]]
        lines += [name + b" = {", *(_literal(argument) + b"," for argument in ours), b"},"]
    return b"\n".join([*lines, b"}", b""])


def _literal(argument: Argument) -> bytes:
    pieces = [b"%d" % piece if isinstance(piece, int) else _quoted(piece) for piece in argument]
    if not argument or (len(argument) == 1 and isinstance(argument[0], bytes)):
        return pieces[0] if pieces else b'""'
    return b"{" + b", ".join(pieces) + b"}"


def _quoted(text: bytes) -> bytes:
    return b'"' + b"".join(b"\\%03d" % byte for byte in text) + b'"'
