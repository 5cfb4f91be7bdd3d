"""Fuzzing policy files: whatever the text, it loads or is told with its place; and what loads can be asked."""

from __future__ import annotations

import re
from functools import cache

from paywitness.core.errors import PolicyError
from paywitness.policy.book import load_content
from paywitness.policy.schema import BLOCKS
from tests.e2e.sidecar import TOP
from tests.fuzz.mutation import kept, mutated
from tests.policy.texts import MINIMAL

_PLACE = re.compile(r"f\.yaml:[0-9]+:[0-9]+: |paywitness:[a-z_]+:[0-9]+:[0-9]+: ")


@cache
def _seeds() -> list[bytes]:
    return [MINIMAL.encode(), MINIMAL.encode(), (TOP / "policies" / "acme.yaml").read_bytes(), *kept("policy")]


PIECES = [
    *sorted({key.encode() for block in BLOCKS for key in block.keys}),
    *(
        b"&a ",
        b"*a",
        b"!!python/object:os.system x",
        b"<<: ",
        b"---\n",
        b"|\n",
        b">\n",
        b"? ",
        b"- ",
        b"\t",
        b"\n  ",
        b"\n",
    ),
    *(
        b"{",
        b"}",
        b"[",
        b"]",
        b"'",
        b'"',
        b"#",
        b"%",
        b": ",
        b"\xc2\x85",
        b"\xe2\x80\xa8",
        b"\xff",
        b"\x00",
        b"@",
        b"`",
    ),
    *(b"null", b"~", b"true", b"0", b"-1", b"1e9", b"24h", b"999999999d", b"100%", b"header:X", b"body:a.b", b"path:x"),
    *(b"{reference}", b"{body:[", b"a == 'b'", b'a == "b"', b"[?a]", b"`{`", b"env:X", b"extends: paywitness:stripe\n"),
    *(
        b"(" * 60,
        b"a." * 60,
        b"[[" * 40,
        b"regex_match(a, '(a+)+$')",
        b"POST /v1/{x}",
        b"POST //",
        b"http://[::1",
        b"0.0.0.0",
    ),
]
FILES = mutated(_seeds(), PIECES, bytes_max=40_000)


def policy_loads_or_is_told(content: bytes) -> None:
    problems: tuple[str, ...] = ("f.yaml:1:1: it loaded",)
    try:
        provider = load_content(content, "f.yaml")
        assert load_content(content, "f.yaml").revision == provider.revision
    except PolicyError as error:
        problems = error.problems
    assert problems
    for problem in problems:
        assert _PLACE.match(problem), problem
        assert "\n" not in problem
