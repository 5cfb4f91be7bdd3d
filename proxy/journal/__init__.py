"""The journal: the durable record of operations, attempts, evidence and decisions.

The interface is `base`; `steps` is what every store does between its read and its write; then one file a store.
"""
