"""The blocks of a policy file, one module each. They read; whether a file may load is decided in `policy.compile`.

operations      one operation, with its provider's rules merged in
idempotency     what the provider promises about its keys
response_rules  `classify`, `answers`, `tables`: how a response is read
inquiries       `ask` and `cancel`
payments        `payment`, `captures`, `balance`, `limits`: the payment behind an operation
payouts         `payout`: caps, approval, the check before the first byte
webhook         how webhook events are checked, read and matched
timing          `timeouts`, `retry`, `resolve`
limits          `budget`, `circuit`, `priority`
fallback        other providers, and what must hold between two files
access          `credentials`, `tls`, `private`
"""
