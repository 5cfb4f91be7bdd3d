"""One fault a file, named as its file. Each docstring says what becomes of the money and what is seen on the wire.

A fault plays around the bank, so the ledger always tells whether the effect happened. When the key's answer is stored
already, the work is not done twice; what the fault does to the wire it does all the same.
"""
