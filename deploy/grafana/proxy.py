"""The proxy itself: is it us?"""

from __future__ import annotations

from deploy.grafana.chart import CARRIED, INSTANCE, OPERATION, Board, Chart, Query, Section, per_second, quantile, risen

_CALL = "payment_call_duration_seconds"
_UPSTREAM = "payment_upstream_duration_seconds"
_JOURNAL = "paywitness_journal_duration_seconds"

_CALLS = Section(
    "Calls",
    (
        Chart(
            "Calls, by sidecar",
            "How the load is spread.",
            "One that gets nothing is not reached; one that gets all of it has no peers.",
            (Query(per_second(f"{_CALL}_count", "instance", OPERATION), "{{instance}}"),),
            unit="reqps",
        ),
        Chart(
            "Call latency",
            "From a call's arrival to its answer, retries and replays included.",
            "Compare with *Provider health*. If only this one rises, calls wait for "
            "retries, for the journal, or for us.",
            (
                Query(quantile(0.5, _CALL, "", OPERATION), "median"),
                Query(quantile(0.95, _CALL, "", OPERATION), "95%"),
                Query(quantile(0.99, _CALL, "", OPERATION), "99%", exemplars=True),
            ),
            red=5,
            unit="s",
        ),
        Chart(
            "What a call takes beyond its attempts",
            "Mean time of a call less that of its attempts, by sidecar: the journal, waiting for retries, and us. A "
            "provider in observe mode has no attempts of ours, so all its time is here.",
            "Is the journal slow (below)? Does the loop lag? Else it is backoff: *Retries and budgets*.",
            (
                Query(
                    f"({per_second(f'{_CALL}_sum', 'instance', CARRIED)} - "
                    f"{per_second(f'{_UPSTREAM}_sum', 'instance', OPERATION)}) / "
                    f"{per_second(f'{_CALL}_count', 'instance', CARRIED)}",
                    "{{instance}}",
                ),
            ),
            red=0.1,
            unit="s",
        ),
    ),
)

_DOOR = Section(
    "At the door",
    (
        Chart(
            "Connections of callers",
            "Open ones, of 1,024 that a sidecar takes.",
            "New ones are soon turned away. Does a service open one for each call? Else add sidecars.",
            (Query(f"max by (instance) (paywitness_edge_connections{{{INSTANCE}}})", "{{instance}}"),),
            red=900,
        ),
        Chart(
            "Turned away at the door",
            "Requests and connections that were none of a call's, by reason. Nothing was sent.",
            "`provider-not-allowed`, `path-not-allowed`: a policy is missing, or somebody tries doors. "
            "`too-many-connections`: add sidecars. `malformed`, `tls-failed`: the caller's client.",
            (Query(per_second("paywitness_edge_refusals_total", "reason", INSTANCE), "{{reason}}"),),
            unit="ops",
            stacked=True,
        ),
        Chart(
            "Answers that did not arrive",
            "Answers that broke on their way to the caller, by whose fault. What became of the money is journalled.",
            "`caller-left`: services give up before the deadline: send `Paywitness-Timeout-Ms`, or wait longer. "
            "`upstream-broke`: the provider, in the midst of a call that is no operation.",
            (Query(per_second("paywitness_edge_broken_answers_total", "reason", INSTANCE), "{{reason}}"),),
            unit="ops",
            stacked=True,
        ),
    ),
)

_JOURNALS = Section(
    "Journal",
    (
        Chart(
            "Journal latency, 99 of 100",
            "How long a journal call took. Every payment waits for two of them.",
            "The disk or the store is slow, or too many writes wait for one commit.",
            (Query(quantile(0.99, _JOURNAL, "call", INSTANCE), "{{call}}"),),
            red=0.25,
            runbook="journal-slow",
            unit="s",
            width=12,
        ),
        Chart(
            "Journal calls",
            "By what they do.",
            "About two for each call. Many more: a reader of the admin port, or a resolver with much to do.",
            (Query(per_second(f"{_JOURNAL}_count", "call", INSTANCE), "{{call}}"),),
            unit="ops",
            width=12,
        ),
        Chart(
            "Journal errors",
            "Journal calls that failed or were not confirmed in time.",
            "While it takes no claim nothing is sent, and callers get 504. Read the runbook now.",
            (Query(risen("paywitness_journal_errors_total", "instance, call", INSTANCE), "{{instance}} {{call}}"),),
            red=0.5,
            runbook="journal-down",
            width=12,
        ),
        Chart(
            "Clock jumps and gaps",
            "Times that the journal's clock and a sidecar's did not advance together, or nobody had looked at them.",
            "Look at NTP on the journal's host and the sidecar's. After all sidecars were down a gap is normal.",
            (Query(risen("paywitness_clock_jumps_total", "instance, kind", INSTANCE), "{{instance}} {{kind}}"),),
            width=12,
        ),
    ),
)

_MACHINE = Section(
    "Process",
    (
        Chart(
            "Event loop lag, 99 of 100",
            "How late the loop runs. All calls of a sidecar wait for the same loop.",
            "More to do than one core can, or the machine is short of it: give it CPU, or add sidecars.",
            (Query(quantile(0.99, "paywitness_loop_lag_seconds", "instance", INSTANCE), "{{instance}}"),),
            red=0.1,
            unit="s",
        ),
        Chart(
            "CPU",
            "Of one core. Calls run on one.",
            "Calls wait for each other: add sidecars.",
            (
                Query(
                    f"rate(process_cpu_seconds_total{{{INSTANCE}}}[$__rate_interval]) * on (instance) "
                    f"group_left () paywitness_build_info{{{INSTANCE}}}",
                    "{{instance}}",
                ),
            ),
            red=0.8,
            unit="percentunit",
        ),
        Chart(
            "Memory",
            "What the process holds.",
            "It is flat when calls are. One that only grows is a leak: restart it (it "
            "drains and loses nothing), and report it.",
            (
                Query(
                    f"process_resident_memory_bytes{{{INSTANCE}}} * on (instance) "
                    f"group_left () paywitness_build_info{{{INSTANCE}}}",
                    "{{instance}}",
                ),
            ),
            red=512 * 1024 * 1024,
            unit="bytes",
        ),
        Chart(
            "Open files",
            "Files and sockets, of those it may have.",
            "New connections are soon refused: raise the limit, or see who leaves connections open.",
            (
                Query(
                    f"(process_open_fds{{{INSTANCE}}} / process_max_fds{{{INSTANCE}}}) * on (instance) "
                    f"group_left () paywitness_build_info{{{INSTANCE}}}",
                    "{{instance}}",
                ),
            ),
            red=0.8,
            unit="percentunit",
        ),
        Chart(
            "Up for",
            "Since the process started.",
            "One that starts again by itself dies: see its log's last lines.",
            (
                Query(
                    f"(time() - process_start_time_seconds{{{INSTANCE}}}) * on (instance) "
                    f"group_left () paywitness_build_info{{{INSTANCE}}}",
                    "{{instance}}",
                ),
            ),
            unit="s",
        ),
        Chart(
            "Versions",
            "Sidecars by version.",
            "Two versions for long: a roll-out that has not finished.",
            (Query(f"count by (version) (paywitness_build_info{{{INSTANCE}}})", "{{version}}"),),
        ),
    ),
)

_POLICIES = Section(
    "Policies",
    (
        Chart(
            "Policy revisions in force",
            "Sidecars by the revision of their policies.",
            "Two for long: some have not read the last edit, or refused it. `/readyz` of each says why.",
            (Query(f"count by (revision) (paywitness_policy_info{{{INSTANCE}}})", "{{revision}}"),),
            runbook="policy-revisions-differ",
            width=12,
        ),
        Chart(
            "Last reading of the policies",
            "1: it gave a book. 0: it did not, and the last good one stays in force.",
            "`paywitness policy check` names file, line and key.",
            (Query(f"min by (instance) (paywitness_policy_last_reload_successful{{{INSTANCE}}})", "{{instance}}"),),
            red=1,
            red_below=True,
            runbook="policy-reload-failed",
            width=12,
        ),
    ),
)

PROXY = Board("proxy", "Paywitness / The proxy itself", "Is it us?", (_CALLS, _DOOR, _JOURNALS, _MACHINE, _POLICIES))
