"""Schemes: whether a webhook was really sent by whom it says. Pure: (headers, raw body, secrets, now) -> a verdict.

    base        the words: Verdict, Check, Scheme, Option; Wrapped and Certified, for more than a check
    named       the name in a policy file -> the scheme; what each scheme may be told
    signed      what the schemes share: bounded reading of headers, and the one place where signatures are compared
    plain_hmac  hmac_sha256 and hmac_sha512, for providers that sign in an ordinary way
    stripe      Stripe's own header
    standard    Standard Webhooks: how others sign to us, and how our own events are signed
    over_body   checkout, gocardless, razorpay, paystack, mollie, authorizenet, coinbase: the body alone, in a header
    adyen, paypal, square, braintree, worldpay, wise, midtrans, dlocal    each in its own way
    token       xendit, flutterwave, and others that repeat a secret in a header
    unsigned    what proves nothing
    public_key  RSA, for paypal and wise

No I/O and no clock: the time comes in as a value. Checking never raises, whatever the request holds; every doubt about
a request ends in a verdict other than `genuine`. No verdict carries a secret or a signature. What the provider facts
call UNVERIFIED is called so in the scheme's own file.
"""
