"""The money. Imports nothing of the sandbox except its clock: no HTTP, no faults.

bank     Bank and Payouts: every method changes an object and writes its entry, or changes nothing
ledger   every effect on the money, one entry each; never edited
objects  Charge, Capture, Refund, Dispute, Payout; changes not published yet; the tokens that choose how each ends
"""
