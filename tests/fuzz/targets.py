"""The targets: what is fuzzed, with what, and the claim that must hold of all of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import strategies as st

from tests.fuzz import answers, bodies, framing, kept_rows, policies, webhooks
from tests.fuzz.mutation import CUTS

Strategy = st.SearchStrategy


@dataclass(frozen=True)
class Target:
    claim: Callable[..., None]
    drawn: tuple[Strategy, ...]
    corpus: str = ""  # the folder of the corpus whose files are the first argument
    examples: int = 60  # in the suite; `make fuzz` goes on for its time

    @property
    def name(self) -> str:
        return self.claim.__name__


TARGETS = (
    Target(policies.policy_loads_or_is_told, (policies.FILES,), "policy", 25),
    Target(webhooks.unsigned_is_never_genuine, (webhooks.HEADERS, webhooks.BODIES)),
    Target(webhooks.only_what_was_signed_is_genuine, (webhooks.BODIES, webhooks.BODIES)),
    Target(webhooks.delivery_is_read_or_refused, (webhooks.PROVIDERS, webhooks.HEADERS, webhooks.BODIES)),
    Target(framing.request_is_carried_as_another_reads_it, (framing.REQUESTS, CUTS), "request", 25),
    Target(answers.answer_is_read_one_way, (answers.ANSWERS, CUTS, st.booleans()), "answer"),
    Target(
        answers.any_status_and_body_are_classified,
        (answers.STATUS_CODES, answers.HEADS, answers.BODIES),
    ),
    Target(bodies.body_is_read_one_way_or_refused, (bodies.BODIES, bodies.ENCODINGS, bodies.PATHS), "body", 100),
    Target(
        bodies.answer_body_is_read_or_refused, (bodies.BODIES, bodies.CODINGS, bodies.ENCODINGS, st.booleans()), "body"
    ),
    Target(
        kept_rows.row_of_a_later_version_is_read_with_care,
        (kept_rows.WORDS, kept_rows.WORDS, kept_rows.WORDS, kept_rows.LATER),
    ),
    Target(kept_rows.broken_row_is_no_success, (kept_rows.STANDINGS,), "standing"),
    Target(kept_rows.broken_entry_is_no_success, (kept_rows.ENTRIES,), "entry"),
    Target(kept_rows.sealed_is_whole_or_unreadable, (kept_rows.SEALED,)),
    Target(kept_rows.spooled_is_read_or_set_aside, (kept_rows.PLAIN,), "spool"),
)
