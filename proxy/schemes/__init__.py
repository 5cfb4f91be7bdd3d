"""Schemes: whether a webhook was really sent by whom it says. Pure: (headers, raw body, secrets, now) -> a verdict.

    base        the words: Verdict, Check, Scheme, Option
    named       the name in a policy file -> the scheme; what each scheme may be told
    signed      what the schemes share: bounded reading of headers, and the one place where signatures are compared
    plain_hmac  hmac_sha256 and hmac_sha512, for providers that sign in an ordinary way
    stripe      Stripe's own header
    standard    Standard Webhooks: how others sign to us, and how our own events are signed

No I/O and no clock: the time comes in as a value. Checking never raises, whatever the request holds; every doubt about
a request ends in a verdict other than `genuine`. No verdict carries a secret or a signature.
"""
