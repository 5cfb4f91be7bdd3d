"""How `paywitness ops show` prints a timeline: each change with its evidence, its decision and the reason."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console

from paywitness.cli.ops.text import moment, numbers, text_of, words
from paywitness.core.timeline_words import duration_text


def print_timeline(screen: Console, timeline: list[dict[str, Any]], *, with_leases: bool = False) -> None:
    """The entries, oldest first. Changes of the lease only are left out unless `with_leases` is set."""
    screen.print("\nTimeline (UTC)")
    for entry in timeline:
        if entry.get("lease_only") and not with_leases:
            continue
        for number, line in enumerate(_entry_lines(entry)):
            screen.print(text_of(line, "dim" if number and line.startswith(" " * 7) else ""))


def _entry_lines(entry: dict[str, Any]) -> Iterator[str]:
    who = f"{entry['source']} {entry['actor']}" if entry["actor"] else entry["source"]
    if command := entry.get("command"):
        yield f"  {moment(entry['at'])}  {words(command['action'])}: {command['stated']}  ({who})"
        if command["evidence"]:
            yield f"      evidence: {command['evidence']}"
        yield f"      reason: {entry['note']}"
        return
    whose = f"{entry['name']} {entry['operation']}: " if "operation" in entry else ""
    yield f"  {moment(entry['at'])}  {whose}{entry['summary']} -> {words(entry['state'])}  ({who})"
    for line in _details(entry):
        yield f"      {line}"


def _details(entry: dict[str, Any]) -> Iterator[str]:
    attempt, finding, decision = entry["attempt"], entry["finding"], entry["decision"]
    if attempt is not None:
        yield from _attempt_lines(attempt)
    if finding is not None:
        status = f", answered {finding['status_code']}" if finding["status_code"] else ""
        detail = f"; {finding['detail']}" if finding["detail"] else ""
        yield f"{finding['source']}: {words(finding['found'])}{status}{_shown_amount(finding)}{detail}"
        if finding["reading"]:
            reference = f", reference {finding['reference']}" if finding["reference"] else ""
            yield f"  {_meaning(finding)}{reference}"
    if entry["doubt"]:
        yield f"in doubt: attempt {numbers(entry['doubt'])}"
    if decision is not None and not entry["actor"]:
        delay = f" after {duration_text(decision['delay_s'])}" if decision["delay_s"] else ""
        yield f"decided: {words(decision['action'])}{delay}, because {decision['because']}"
    yield from _other_routes(entry.get("fallback"))  # a sidecar of an earlier release does not send it
    if entry["note"]:
        yield f"{'reason' if entry['actor'] else 'note'}: {entry['note']}"


def _other_routes(choice: dict[str, Any] | None) -> Iterator[str]:
    """The routes that were considered after an end without effect, each with its verdict."""
    if choice is None:
        return
    tried = f"{choice['attempts']} attempts" if choice["attempts"] != 1 else "1 attempt"
    yield f"other routes: {words(choice['cause'])} after {tried}, policy revision {choice['revision']}"
    for each in choice["candidates"]:
        yield f"  {each['to']}: {words(each['verdict'])}{'; ' + each['detail'] if each['detail'] else ''}"


def _attempt_lines(attempt: dict[str, Any]) -> Iterator[str]:
    answer = f"answered {attempt['status_code']}" if attempt["status_code"] else "no whole response"
    fault = f", {words(attempt['fault'])}" if attempt["fault"] else ""
    reach = f"reached {attempt['phase']}, {attempt['bytes_written']} bytes written"
    took = duration_text(attempt["duration_ms"] / 1000)
    yield f"attempt {attempt['number']}: {answer}{fault}{_shown_amount(attempt)}; {reach}, {took}"
    if attempt.get("request_id"):
        yield f"  request id at the provider: {attempt['request_id']}"
    yield f"  {_meaning(attempt)}{'; ' + attempt['detail'] if attempt['detail'] else ''}"


def _meaning(evidence: dict[str, Any]) -> str:
    return f"read as {words(evidence['reading'])}, effect {evidence['effect']} (rule {evidence['rule']})"


def _shown_amount(evidence: dict[str, Any]) -> str:
    """The amount in the response, if it differs from the requested one."""
    return f", shows {evidence['shown_amount']}" if evidence.get("shown_amount") else ""
