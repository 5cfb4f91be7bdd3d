"""The targets: what is fuzzed, with what, and the claim that must hold of all of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import strategies as st

from tests.fuzz import bodies, framing, policies, responses, stored_rows, webhooks
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
    Target(responses.answer_is_read_one_way, (responses.ANSWERS, CUTS, st.booleans()), "answer"),
    Target(
        responses.any_status_and_body_are_classified,
        (responses.STATUS_CODES, responses.HEADS, responses.BODIES),
    ),
    Target(bodies.body_is_read_one_way_or_refused, (bodies.BODIES, bodies.ENCODINGS, bodies.PATHS), "body", 100),
    Target(
        bodies.answer_body_is_read_or_refused, (bodies.BODIES, bodies.CODINGS, bodies.ENCODINGS, st.booleans()), "body"
    ),
    Target(
        stored_rows.row_of_a_later_version_is_read_with_care,
        (stored_rows.WORDS, stored_rows.WORDS, stored_rows.WORDS, stored_rows.LATER),
    ),
    Target(stored_rows.broken_row_is_no_success, (stored_rows.STANDINGS,), "standing"),
    Target(stored_rows.broken_entry_is_no_success, (stored_rows.ENTRIES,), "entry"),
    Target(stored_rows.sealed_is_whole_or_unreadable, (stored_rows.SEALED,)),
    Target(stored_rows.spooled_is_read_or_set_aside, (stored_rows.PLAIN,), "spool"),
)
