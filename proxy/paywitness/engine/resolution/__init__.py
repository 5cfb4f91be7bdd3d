"""Resolution: finds the outcome of an operation after its caller has left. An unknown outcome ends by evidence alone.

    resolver           takes due operations: inquire, resend under the same key, cancel, reschedule or send to review
    next_checks        what follows a check that ended nothing, and a customer's time to act
    inquiries          the inquiry client: asks the provider by each way that the policy knows, hedged; sends cancels
    background_credentials  credentials for our own calls: the caller's, the newest accepted one, the environment's
    control_question   whether a credential finds what another one made
    external_evidence  records what an inquiry, a webhook, a cancel or an operator showed
    payments           verifies what was paid elsewhere, announces authorizations that expire, reads intents
    late_evidence      records a response that came after its attempt had timed out, or that the spool kept

No lease is needed to record evidence: a lease is the right to send, not the right to know.
"""
