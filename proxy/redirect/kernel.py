"""The rules in the kernel: by `nft` where there is one, else by iptables and ip6tables. Both are idempotent."""

from __future__ import annotations

import shutil
import subprocess
from enum import StrEnum

from proxy.core.errors import SettingsError
from proxy.redirect.rules import CHAIN, JUMP, TABLE, Redirection, iptables_install, nft_install, nft_remove

_WITHIN_S = 20.0
_FAMILIES = ("iptables", "ip6tables")


class Backend(StrEnum):
    NFT = "nft"
    IPTABLES = "iptables"


def backend_here() -> Backend:
    for backend in Backend:
        if shutil.which(backend.value):
            return backend
    raise SettingsError("neither nft nor iptables is installed here: install nftables, or iptables")


def script(wanted: Redirection, backend: Backend) -> str:
    """What `install` does, to be read before it is done."""
    if backend is Backend.NFT:
        return nft_install(wanted)
    jump = " ".join(JUMP)
    parts = []
    for family, ipv6 in zip(_FAMILIES, (False, True), strict=True):
        restored = iptables_install(wanted, ipv6=ipv6)
        parts.append(f"{family}-restore --wait --noflush <<END\n{restored}END\n{family} --wait -t nat -A {jump}\n")
    return "".join(parts)


def install(wanted: Redirection, backend: Backend) -> None:
    if backend is Backend.NFT:
        _run(["nft", "-f", "-"], nft_install(wanted))
        return
    for family, ipv6 in zip(_FAMILIES, (False, True), strict=True):
        _run([f"{family}-restore", "--wait", "--noflush"], iptables_install(wanted, ipv6=ipv6))
        if not _jumps(family):
            _run([family, "--wait", "-t", "nat", "-A", *JUMP])


def remove(backend: Backend) -> None:
    """What was installed, and nothing else. Nothing there is no fault."""
    if backend is Backend.NFT:
        _run(["nft", "-f", "-"], nft_remove())
        return
    for family in _FAMILIES:
        while _jumps(family):
            _run([family, "--wait", "-t", "nat", "-D", *JUMP])
        if _succeeds([family, "--wait", "-t", "nat", "-n", "-L", CHAIN]):
            _run([family, "--wait", "-t", "nat", "-F", CHAIN])
            _run([family, "--wait", "-t", "nat", "-X", CHAIN])


def shown(backend: Backend) -> str:
    """What stands in the kernel of ours; empty where nothing does."""
    if backend is Backend.NFT:
        found = _tried(["nft", "list", "table", "inet", TABLE])
        return found.stdout if found.returncode == 0 else ""
    lines: list[str] = []
    for family in _FAMILIES:
        found = _tried([family, "--wait", "-t", "nat", "-S"])
        lines += [f"{family} {line}" for line in found.stdout.splitlines() if CHAIN in line]
    return "".join(f"{line}\n" for line in lines)


def _jumps(family: str) -> bool:
    return _succeeds([family, "--wait", "-t", "nat", "-C", *JUMP])


def _succeeds(command: list[str]) -> bool:
    return _tried(command).returncode == 0


def _tried(command: list[str], given: str = "") -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, input=given, capture_output=True, text=True, timeout=_WITHIN_S, check=False)
    except FileNotFoundError:
        raise SettingsError(f"{command[0]} is not installed here") from None
    except subprocess.TimeoutExpired:
        raise SettingsError(f"{command[0]} did not end within {_WITHIN_S:.0f} s") from None


def _run(command: list[str], given: str = "") -> None:
    done = _tried(command, given)
    if done.returncode:
        why = done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"]
        raise SettingsError(f"{command[0]}: {why[0]} (this needs root, or CAP_NET_ADMIN, in the service's namespace)")
