"""Checks of the machine: its clock, its limits, optional faster libraries, and the ports."""

from __future__ import annotations

import errno
import http.client
import importlib.util
import resource
import socket
import sys
import time
from collections.abc import Iterator

from paywitness.option_defaults import Address, Settings
from paywitness.tools.doctor.redis_checks import is_loopback
from paywitness.tools.doctor.runner import DoctorFinding, ok, unfit, warning

_FILES_MIN = 4096  # a thousand calls under way need two connections each, and as many may idle
_PROBE_TIMEOUT_S = 0.7
_RESPONSE_BYTES_MAX = 65_536
# By listener: a path that only Paywitness serves. The probe recognises one of our sidecars by it.
_PROBE_PATHS = {
    "listen": "/paywitness/operations/doctor",
    "admin": "/healthz",
    "webhooks": "/paywitness/webhooks/doctor",
}


def machine_findings() -> Iterator[DoctorFinding]:
    if sys.platform == "linux" and hasattr(time, "CLOCK_BOOTTIME"):
        yield ok("machine", "Linux, with CLOCK_BOOTTIME: leases count the time that the machine sleeps")
    else:
        why = "resets and lease clocks are weaker than on Linux"
        yield warning("machine", f"{sys.platform}, without CLOCK_BOOTTIME", why, "For real money use Linux")
    for name, what in (("uvloop", "a faster event loop"), ("hiredis", "a faster Redis parser")):
        there = importlib.util.find_spec(name) is not None
        yield ok("machine speed", f"{name} is {'installed' if there else 'not installed (extra: speed)'}: {what}")
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY and files < _FILES_MIN:
        why = "under load connections would be refused"
        yield warning("machine files", f"{files} open files allowed", why, f"ulimit -n {_FILES_MIN}, or LimitNOFILE=")
    else:
        yield ok("machine files", "unlimited" if files == resource.RLIM_INFINITY else f"{files} open files allowed")


def port_findings(settings: Settings) -> Iterator[DoctorFinding]:
    listeners = {"listen": settings.listen, "admin": settings.admin, "webhooks": settings.webhooks}
    seen: dict[Address, str] = {}
    for name, address in listeners.items():
        if address is None:
            continue
        first = seen.setdefault(address, name)
        if first != name and address.port:
            yield unfit(f"port {name}", f"{address} is that of --{first} too", "a start is refused", "Choose another")
            continue
        yield from _port_finding(name, address)


def _port_finding(name: str, address: Address) -> Iterator[DoctorFinding]:
    subject = f"port {name}"
    problem = _bind_error(address)
    if problem is None:
        yield ok(subject, f"{address} is free")
    elif problem.errno == errno.EADDRINUSE and _is_paywitness(name, address):
        yield ok(subject, f"{address}: a sidecar runs there already; a second one needs another address")
    elif problem.errno == errno.EADDRINUSE:
        found = f"{address} is in use, and not by a sidecar"
        yield unfit(subject, found, "a start is refused", f"Stop what listens there (ss -ltnp), or change --{name}")
    else:
        found = f"{address} cannot be listened on ({problem.strerror or problem})"
        yield unfit(subject, found, "a start is refused", f"Change --{name}")
    if name != "webhooks" and not is_loopback(address.host):  # webhooks may be public: they are signed
        why = "anybody who reaches it may use it, and nothing is encrypted"
        yield warning(subject, f"{address} is open to the network", why, "Use 127.0.0.1, or guard it with a firewall")


def _bind_error(address: Address) -> OSError | None:
    """The error of binding the address, or None. It binds as a server would, for a moment, and does not listen."""
    try:
        family, kind, protocol, _, socket_address = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(socket_address)
    except OSError as error:
        return error
    return None


def _is_paywitness(name: str, address: Address) -> bool:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address.host, address.host)  # noqa: S104  # it is asked, not bound
    connection = http.client.HTTPConnection(host, address.port, timeout=_PROBE_TIMEOUT_S)
    try:
        connection.request("GET", _PROBE_PATHS[name])
        response = connection.getresponse()
        response_text = str(response.headers).lower().encode() + response.read(_RESPONSE_BYTES_MAX).lower()
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
    return b"paywitness" in response_text
