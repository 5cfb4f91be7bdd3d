"""The HTTP APIs in front of the bank: one module each, over the same bank and ledger.

base    the parts that the dialects share
acme    the API of policies/acme.yaml
stripe  the part of Stripe's API that the tests need
"""
