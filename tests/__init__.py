"""Ours: some SDKs that are tested here install a package of this name too, and without this file theirs would win."""
