"""What is not one bounded YAML mapping is refused before anything is built from it."""

from __future__ import annotations

import pytest

from paywitness.core.errors import PolicyError
from paywitness.policy.book import load_content
from paywitness.policy.reading.document import FILE_BYTES_MAX, canonical_text, json_value, read_document
from paywitness.policy.reading.locations import FileProblems


def said_of(content: bytes) -> tuple[str, ...]:
    with pytest.raises(PolicyError) as caught:
        load_content(content, "f.yaml")
    return caught.value.problems


def alias_bomb(levels: int) -> bytes:
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, levels)]
    return "\n".join(rows).encode()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "f.yaml:1:1: found nothing: the file is empty, allowed: a mapping such as 'provider: NAME'"),
        (b"# only a comment\n", "f.yaml:1:1: found nothing: the file is empty"),
        (b"- provider: bank\n", "f.yaml:1:1: found a list, allowed: a mapping such as 'provider: NAME'"),
        (b"provider\n", "f.yaml:1:1: found a single value, allowed: a mapping"),
        (b"a: 1\n---\nb: 2\n", "f.yaml:2:1: found a second document ('---'), allowed: one document in a file"),
        (b"a:\n  - b\n\t- c\n", "f.yaml:3:1: found a tab, allowed: spaces"),
        (b"provider: \xff\xfe\n", "f.yaml:1:11: found bytes that are not UTF-8, allowed: a YAML file in UTF-8"),
        (b"\x7fELF\x02\x01\x01\x00\x00", "f.yaml:1:1: found a control character, allowed: printable text"),
        (b"provider: a\x00b\n", "f.yaml:1:12: found a control character"),
        (b"a: !!python/object/apply:os.system [id]\n", "f.yaml:1:4: found the tag 'tag:yaml.org,2002:python/object"),
        (b"a: !!int 5\n", "f.yaml:1:4: found the tag 'tag:yaml.org,2002:int', allowed: plain values without tags"),
        (b"a: !own 5\n", "f.yaml:1:4: found the tag '!own'"),
        (b"a: &x [*x]\n", "f.yaml:1:8: found '*x', allowed: the name ('&x') of something complete above it"),
        (b"a: *nobody\n", "f.yaml:1:4: found '*nobody', allowed"),
        (b"? [a, b]\n: c\n", "f.yaml:1:3: found a list or mapping as a key, allowed: a word"),
        (b"'': c\n", "f.yaml:1:1: found a key of 0 characters, allowed: 1 to 200"),
        (
            b"a: {b: c\n",
            "f.yaml:2:1: this is not YAML: did not find expected ',' or '}' (while parsing a flow mapping)",
        ),
        (b"a: b: c\n", "f.yaml:1:5: this is not YAML: mapping values are not allowed in this context"),
        (b"a: " + b"[" * 500 + b"]" * 500, "f.yaml:1:27: found more than 24 levels, allowed: at most 24"),
        (b"a: " + b"[" * 100_000, "f.yaml:1:27: found more than 24 levels"),
        (b"a: [" + b"x," * 30_000 + b"]", "f.yaml:1:40003: found more than 20000 values"),
        (b"#" * (FILE_BYTES_MAX + 1), "f.yaml:1:1: found more than 262144 bytes, allowed: at most 256 KiB"),
    ],
)
def test_a_file_that_is_no_policy_at_all_is_told_why(content, said):
    (problem,) = said_of(content)
    assert problem.startswith(said)


def test_an_alias_bomb_is_refused_before_it_grows():
    (problem,) = said_of(alias_bomb(9))
    assert "found more than 20000 values (aliases count as often as they are used)" in problem


def test_aliases_cannot_stack_depth():
    rows = ["a0: &a0 [x]", *(f"a{i}: &a{i} [*a{i - 1}]" for i in range(1, 40))]
    (problem,) = said_of("\n".join(rows).encode())
    assert "found more than 24 levels" in problem


def test_a_key_given_twice_is_told_with_its_path():
    problems = said_of(b"provider: a\ntimeouts:\n  connect: 1s\n  connect: 2s\nretry: [{a: 1, a: 2}]\n")
    assert "f.yaml:4:3: timeouts.connect: found the same key twice in one mapping, allowed: once" in problems
    assert "f.yaml:5:16: retry[0].a: found the same key twice in one mapping, allowed: once" in problems


def test_scalars_stay_what_was_written():
    document = read_document(b"a: [off, 0500, 1:30, no, 1_000, ~, 2020-01-01, 0x10]\n", "f", FileProblems())
    assert document is not None
    assert json_value(document) == {"a": ["off", "0500", "1:30", "no", "1_000", "~", "2020-01-01", "0x10"]}


def test_free_json_takes_jsons_own_words_unless_they_are_quoted():
    document = read_document(b"a: [null, true, 12, -1.5, 'null', \"true\", '12', 007]\n", "f", FileProblems())
    assert document is not None
    assert json_value(document) == {"a": [None, True, 12, -1.5, "null", "true", "12", "007"]}


def test_the_canonical_text_reads_back_as_the_same_nodes():
    content = b"a: {b: [1, '1', true, \"x\\ty\", 0500]}\nc: {}\nd: []\ne: |\n  two\n  lines\n"
    document = read_document(content, "f", FileProblems())
    assert document is not None
    text = canonical_text(document)
    again = read_document(text.encode(), "f", FileProblems())
    assert again is not None
    assert json_value(again) == json_value(document)
    assert canonical_text(again) == text
