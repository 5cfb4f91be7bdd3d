"""Redirect rules: their text for nftables and iptables, and how they are installed, removed and listed. It uses `nft`
if that is installed, else iptables and ip6tables. Both ways are idempotent.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from enum import StrEnum

from paywitness.core.errors import SettingsError
from paywitness.option_defaults import DEFAULTS

# --- Rules as text
# Pure functions.
#
# Outgoing connections of this network namespace to the given ports come to us. Connections of the sidecar itself do
# not, or it would connect to itself. Connections that stay on this machine or its private networks do not, either.

TABLE = "paywitness"  # of nftables
CHAIN = "PAYWITNESS"  # of iptables
_LOOPBACK = ("127.0.0.0/8",), ("::1/128",)
_PRIVATE = (
    ("10.0.0.0/8", "100.64.0.0/10", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16"),
    ("fc00::/7", "fe80::/10"),
)


@dataclass(frozen=True, slots=True)
class RedirectRules:
    uid: int | None  # the sidecar's user, whose connections pass
    gid: int | None = None  # or its group
    to_port: int = DEFAULTS.listen.port
    ports: tuple[int, ...] = (80, 443)
    private_too: bool = False  # also redirect connections to private networks; never those that stay on this machine

    def excluded_networks(self, *, ipv6: bool) -> tuple[str, ...]:
        """The networks whose connections are not redirected."""
        loopback = _LOOPBACK[ipv6]
        return loopback if self.private_too else (*loopback, *_PRIVATE[ipv6])


def nft_install(rules: RedirectRules) -> str:
    """The rules in one transaction: it replaces the earlier content of our table at the same moment."""
    ports = ", ".join(str(port) for port in rules.ports)
    return "\n".join(
        [
            f"add table inet {TABLE}",
            f"delete table inet {TABLE}",
            f"table inet {TABLE} {{",
            "  chain output {",
            "    type nat hook output priority -100; policy accept;",
            *([f"    meta skuid {rules.uid} return"] if rules.uid is not None else ()),
            *([f"    meta skgid {rules.gid} return"] if rules.gid is not None else ()),
            f"    ip daddr {{ {', '.join(rules.excluded_networks(ipv6=False))} }} return",
            f"    ip6 daddr {{ {', '.join(rules.excluded_networks(ipv6=True))} }} return",
            f"    tcp dport {{ {ports} }} redirect to :{rules.to_port}",
            "  }",
            "}",
            "",
        ]
    )


def nft_remove() -> str:
    return f"add table inet {TABLE}\ndelete table inet {TABLE}\n"


def iptables_install(rules: RedirectRules, *, ipv6: bool) -> str:
    """Input of `iptables-restore --noflush`: it empties and fills our chain in one commit. The jump to the chain is not
    in it."""
    ports = ",".join(str(port) for port in rules.ports)
    return "\n".join(
        [
            "*nat",
            f":{CHAIN} - [0:0]",
            *([f"-A {CHAIN} -m owner --uid-owner {rules.uid} -j RETURN"] if rules.uid is not None else ()),
            *([f"-A {CHAIN} -m owner --gid-owner {rules.gid} -j RETURN"] if rules.gid is not None else ()),
            *(f"-A {CHAIN} -d {network} -j RETURN" for network in rules.excluded_networks(ipv6=ipv6)),
            f"-A {CHAIN} -p tcp -m multiport --dports {ports} -j REDIRECT --to-ports {rules.to_port}",
            "COMMIT",
            "",
        ]
    )


JUMP = ("OUTPUT", "-p", "tcp", "-j", CHAIN)


# --- Firewall

_COMMAND_TIMEOUT_S = 20.0
_FAMILIES = ("iptables", "ip6tables")


class FirewallBackend(StrEnum):
    NFT = "nft"
    IPTABLES = "iptables"


def detect_backend() -> FirewallBackend:
    for backend in FirewallBackend:
        if shutil.which(backend.value):
            return backend
    raise SettingsError("neither nft nor iptables is installed here: install nftables, or iptables")


def install_script(rules: RedirectRules, backend: FirewallBackend) -> str:
    """The commands of `install`, for a person to read first."""
    if backend is FirewallBackend.NFT:
        return nft_install(rules)
    jump = " ".join(JUMP)
    parts = []
    for family, ipv6 in zip(_FAMILIES, (False, True), strict=True):
        restore_input = iptables_install(rules, ipv6=ipv6)
        parts.append(f"{family}-restore --wait --noflush <<END\n{restore_input}END\n{family} --wait -t nat -A {jump}\n")
    return "".join(parts)


def install(rules: RedirectRules, backend: FirewallBackend) -> None:
    if backend is FirewallBackend.NFT:
        _run(["nft", "-f", "-"], nft_install(rules))
        return
    for family, ipv6 in zip(_FAMILIES, (False, True), strict=True):
        _run([f"{family}-restore", "--wait", "--noflush"], iptables_install(rules, ipv6=ipv6))
        if not _jump_exists(family):
            _run([family, "--wait", "-t", "nat", "-A", *JUMP])


def remove(backend: FirewallBackend) -> None:
    """Remove our rules, and nothing else. It is no error if there are none."""
    if backend is FirewallBackend.NFT:
        _run(["nft", "-f", "-"], nft_remove())
        return
    for family in _FAMILIES:
        while _jump_exists(family):
            _run([family, "--wait", "-t", "nat", "-D", *JUMP])
        if _succeeds([family, "--wait", "-t", "nat", "-n", "-L", CHAIN]):
            _run([family, "--wait", "-t", "nat", "-F", CHAIN])
            _run([family, "--wait", "-t", "nat", "-X", CHAIN])


def installed_rules(backend: FirewallBackend) -> str:
    """Our rules in the kernel; empty if there are none."""
    if backend is FirewallBackend.NFT:
        found = _execute(["nft", "list", "table", "inet", TABLE])
        return found.stdout if found.returncode == 0 else ""
    lines: list[str] = []
    for family in _FAMILIES:
        found = _execute([family, "--wait", "-t", "nat", "-S"])
        lines += [f"{family} {line}" for line in found.stdout.splitlines() if CHAIN in line]
    return "".join(f"{line}\n" for line in lines)


def _jump_exists(family: str) -> bool:
    return _succeeds([family, "--wait", "-t", "nat", "-C", *JUMP])


def _succeeds(command: list[str]) -> bool:
    return _execute(command).returncode == 0


def _execute(command: list[str], stdin: str = "") -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S, check=False
        )
    except FileNotFoundError:
        raise SettingsError(f"{command[0]} is not installed here") from None
    except subprocess.TimeoutExpired:
        raise SettingsError(f"{command[0]} did not end within {_COMMAND_TIMEOUT_S:.0f} s") from None


def _run(command: list[str], stdin: str = "") -> None:
    completed = _execute(command, stdin)
    if completed.returncode:
        errors = completed.stderr.strip().splitlines() or [f"it ended with {completed.returncode}"]
        raise SettingsError(
            f"{command[0]}: {errors[0]} (this needs root, or CAP_NET_ADMIN, in the service's namespace)"
        )
