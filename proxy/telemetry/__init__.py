"""Telemetry: what is told of the work, to people and to machines.

    records     what happened, frozen: one record feeds the log and the metrics, so they cannot disagree
    telemetry   the one door: `tell(record)`
    metrics     the counters and histograms, in a registry of their own
    names       which provider and operation names may become labels
    doubt       the gauges about doubt, shown from what the journal last counted
    queue       the gauges about what waits to be tried or looked at again
    limits      the gauges about circuits, retry budgets and admission, asked when somebody scrapes
    edge        what the edge counts by itself, asked when somebody scrapes
    exposition  how a scrape is written
    logs        which record is a line, at which level, with which fields
    lines       how a line is written: JSON, or for a person at a terminal; the last place that redacts
    tracing     whether spans are made too, and for whom; spans: how records become them (an extra)

No record carries a payload, a header value or a key. Telling never raises: a payment does not fail for want of a line.
"""
