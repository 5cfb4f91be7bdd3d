"""Webhook signatures: whether a webhook really comes from the provider. Pure: (headers, raw body, secrets, now) -> a
verdict.

    scheme             SignatureVerdict, SignatureCheck, SignatureScheme; bounded headers; the one comparison
    registry           from the name in a policy file to the scheme, and its options
    rsa                RSA signatures and certificates, for paypal and wise; the only file that imports cryptography
    hmac_schemes       hmac_sha256 and hmac_sha512 by options; seven providers that sign only the body
    standard_webhooks  Standard Webhooks 1.0.0: checks webhooks signed so, and signs our own events
    unsigned_body      token, xendit, flutterwave, unsigned: nothing of the body is signed
    stripe, adyen, braintree, dlocal, midtrans, paypal, square, wise, worldpay    one file for each provider

No I/O and no clock: the time comes in as a value. A check never raises, whatever the request holds. If anything about a
request is doubtful, the verdict is not `genuine`. No verdict carries a secret or a signature. A claim that no official
source confirms is marked UNVERIFIED in the scheme's own file.
"""
