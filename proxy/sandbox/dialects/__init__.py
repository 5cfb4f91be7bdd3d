"""The languages in which the bank can be spoken to: one file each, over the same bank and the same ledger."""
