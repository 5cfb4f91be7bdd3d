"""Transparent mode: clients reach the sidecar without a changed base URL. The server uses this room.

    local_ca        the local CA; the short-lived certificates and TLS contexts of single hosts
    ca_files        the files of the CA: certificate, key, next pair, client bundle; the shell lines for clients
    redirect        redirect rules as text, for nftables and iptables; installs, removes and lists them
    node_proxy.cjs  makes the fetch of older Node versions use HTTPS_PROXY

Sockets do not belong here. Rules: the CA can sign only for the hosts of policies, by its own name constraints, and its
key never leaves its file. Redirect rules live in a table or chain of our own, so removing them leaves nothing.
"""
