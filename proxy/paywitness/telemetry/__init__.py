"""Telemetry: logs, metrics and traces of the work, for people and for machines.

    events      the events, as values: one event feeds the log and the metrics, so they cannot disagree
    emitter     `Telemetry.emit(event)`, the only entry; whether spans are made, and for which collector
    metrics     counters and histograms; the event loop's lag
    background  counters of work that goes on after the caller has left: inquiries, webhooks, fallbacks
    observed    the counters of shadow mode
    gauges      unknown outcomes, retry queue, limits, the server's counters
    prometheus  our own histogram, and a scrape written in pieces
    logs        which event is a log line, at which level, with which fields; JSON or text; redacts last
    spans       how events become spans (needs the extra `otel`; imported only when tracing is configured)

No event carries a payload, a header value or a key. Emitting never raises, because a payment must not fail for a log
line.
"""
