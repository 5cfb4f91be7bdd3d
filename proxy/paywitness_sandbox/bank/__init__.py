"""What happens to the money. Imports nothing of the sandbox but its clock: no HTTP, no faults.

bank     Bank and Payouts: every method changes an object and writes its entry, or changes nothing
ledger   what really happened to the money, one entry per effect; never edited
objects  Charge, Capture, Refund, Dispute, Payout; changes not published yet; what chooses how each of them ends
"""
