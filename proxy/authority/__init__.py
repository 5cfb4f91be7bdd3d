"""The local authority: certificates for the hosts that policies name, and for no others.

What does not belong here: sockets. The rule: the authority can vouch for nothing but its policies' hosts, by its own
certificate and not by our good behaviour; and its key never leaves its file.
"""
