"""What the provider tells on its own: signed events about what has changed, sent to one endpoint.

    bank notes a change -> announcer makes events of it, as the mode says -> courier sends them, and tries again

An **event** is told at least once and in the order in which things happened, unless a **mode** says otherwise: late,
twice, forged, out of order. What was sent, how often and how it was received is kept for a person to look at.
"""
