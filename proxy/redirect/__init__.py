"""Redirect mode's kernel rules: written, removed and shown, by nftables or iptables. The edge serves what they bring.

The rule: what is installed is exactly what `rules` says, in a table or chain of our own; removing it leaves nothing,
and touches nothing of anybody else's.
"""
