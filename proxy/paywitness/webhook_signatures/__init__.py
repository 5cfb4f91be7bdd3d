"""Webhook signatures: whether a webhook was really sent by whom it says. Pure: (headers, raw body, secrets, now) ->
a verdict.

    scheme             SignatureVerdict, SignatureCheck, SignatureScheme, SchemeOption; what schemes can do
    registry           the name in a policy file -> the scheme, and the options it takes
    comparison         bounded reading of headers, and the one place where signatures are compared
    rsa                RSA signatures and certificates, for paypal and wise; the only file that imports cryptography
    generic_hmac       hmac_sha256 and hmac_sha512, configured by options
    body_hmac          checkout, gocardless, razorpay, paystack, mollie, authorizenet, coinbase: HMAC of the body
    standard_webhooks  Standard Webhooks 1.0.0: how others sign to us, and how our own events are signed
    unsigned_body      token, xendit, flutterwave, unsigned: nothing of the body is signed
    stripe, adyen, braintree, dlocal, midtrans, paypal, square, wise, worldpay    one file a provider

No I/O and no clock: the time comes in as a value. Checking never raises, whatever the request holds; if anything
about a request is doubtful, the verdict is not `genuine`. No verdict carries a secret or a signature. Claims that
the provider facts call UNVERIFIED are marked so in the scheme's own file.
"""
