"""The rules as text, for nftables and for iptables. Pure.

Outgoing connections of this network namespace to the given ports come to us; those of the proxy itself do not, or
it would talk to itself; nor do those that stay on this machine or its private networks.
"""

from __future__ import annotations

from dataclasses import dataclass

TABLE = "paywitness"  # of nftables
CHAIN = "PAYWITNESS"  # of iptables
_LOOPBACK = ("127.0.0.0/8",), ("::1/128",)
_PRIVATE = (
    ("10.0.0.0/8", "100.64.0.0/10", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16"),
    ("fc00::/7", "fe80::/10"),
)


@dataclass(frozen=True, slots=True)
class Redirection:
    uid: int | None  # whose connections pass: the proxy's user
    gid: int | None = None  # or its group
    to_port: int = 8700
    ports: tuple[int, ...] = (80, 443)
    private_too: bool = False  # also what goes to private networks; never what stays on this machine

    def spared(self, *, ipv6: bool) -> tuple[str, ...]:
        """Networks whose connections are left alone."""
        loopback = _LOOPBACK[ipv6]
        return loopback if self.private_too else (*loopback, *_PRIVATE[ipv6])


def nft_install(wanted: Redirection) -> str:
    """One transaction: whatever stood in our table before is gone in the same moment."""
    ports = ", ".join(str(port) for port in wanted.ports)
    return "\n".join(
        [
            f"add table inet {TABLE}",
            f"delete table inet {TABLE}",
            f"table inet {TABLE} {{",
            "  chain output {",
            "    type nat hook output priority -100; policy accept;",
            *([f"    meta skuid {wanted.uid} return"] if wanted.uid is not None else ()),
            *([f"    meta skgid {wanted.gid} return"] if wanted.gid is not None else ()),
            f"    ip daddr {{ {', '.join(wanted.spared(ipv6=False))} }} return",
            f"    ip6 daddr {{ {', '.join(wanted.spared(ipv6=True))} }} return",
            f"    tcp dport {{ {ports} }} redirect to :{wanted.to_port}",
            "  }",
            "}",
            "",
        ]
    )


def nft_remove() -> str:
    return f"add table inet {TABLE}\ndelete table inet {TABLE}\n"


def iptables_install(wanted: Redirection, *, ipv6: bool) -> str:
    """For `iptables-restore --noflush`: our chain is emptied and filled in one commit. Who jumps to it is not said."""
    ports = ",".join(str(port) for port in wanted.ports)
    return "\n".join(
        [
            "*nat",
            f":{CHAIN} - [0:0]",
            *([f"-A {CHAIN} -m owner --uid-owner {wanted.uid} -j RETURN"] if wanted.uid is not None else ()),
            *([f"-A {CHAIN} -m owner --gid-owner {wanted.gid} -j RETURN"] if wanted.gid is not None else ()),
            *(f"-A {CHAIN} -d {network} -j RETURN" for network in wanted.spared(ipv6=ipv6)),
            f"-A {CHAIN} -p tcp -m multiport --dports {ports} -j REDIRECT --to-ports {wanted.to_port}",
            "COMMIT",
            "",
        ]
    )


JUMP = ("OUTPUT", "-p", "tcp", "-j", CHAIN)
