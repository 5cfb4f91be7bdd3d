"""The blocks of a policy file, one module each. They read; `policy.compile` decides whether a file may load.

operations      one operation, with its provider's rules merged in
idempotency     the provider's promises about its keys
response_rules  `classify`, `answers`, `tables`: how a response is classified
inquiries       `ask` and `cancel`
payments        `payment`, `captures`, `balance`, `limits`: the payment behind an operation
payouts         `payout`: caps, approval, the check before the first byte
webhook         how webhook events are checked, read and matched
timing          `timeouts`, `retry`, `resolve`
limits          `budget`, `circuit`, `priority`
fallback        other providers, and the rules that two files must keep together
access          `credentials`, `tls`, `private`
"""
