"""Webhook events of the provider: signed, and sent to one endpoint.

    bank notes a change -> publisher makes events of it, as the mode says -> sender delivers them, with retries

An **event** is delivered at least once and in order, unless a **mode** says otherwise: late, twice, forged, out of
order. The sent events, their attempts and their results are kept for a person to read.

    events     the content of an event, in the form of its dialect
    publisher  makes events of changes
    sender     delivers events with retries
"""
