"""Webhook signatures: whether a webhook was really sent by whom it says. Pure: (headers, raw body, secrets, now) ->
a verdict.

    scheme             SignatureVerdict, SignatureCheck, SignatureScheme; bounded headers; the one comparison
    registry           the name in a policy file -> the scheme, and the options it takes
    rsa                RSA signatures and certificates, for paypal and wise; the only file that imports cryptography
    hmac_schemes       hmac_sha256 and hmac_sha512 by options; seven providers that sign the body and nothing else
    standard_webhooks  Standard Webhooks 1.0.0: how others sign to us, and how our own events are signed
    unsigned_body      token, xendit, flutterwave, unsigned: nothing of the body is signed
    stripe, adyen, braintree, dlocal, midtrans, paypal, square, wise, worldpay    one file a provider

No I/O and no clock: the time comes in as a value. Checking never raises, whatever the request holds; if anything
about a request is doubtful, the verdict is not `genuine`. No verdict carries a secret or a signature. Claims that
the provider facts call UNVERIFIED are marked so in the scheme's own file.
"""
