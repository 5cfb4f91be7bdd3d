"""The HTTP APIs in front of the bank: one module each, over the same bank and ledger. `base` is what they share."""
