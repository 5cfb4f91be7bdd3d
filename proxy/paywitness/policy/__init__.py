"""Policies: YAML files read, checked and turned into the plain values of `core.policy`.

    book              all providers at one revision, immutable; how a directory of files becomes one
    compile           one file: its top level, its operations, and what only shows when all of it is seen together
    schema            the one list of keys, block by block
    shipped_policies  the policies we ship, and `extends`
    identity_rules    what keys, fingerprints and guards are made from, and what an edit would change in it
    unkept_promises   warnings: what a file says that cannot come to pass
    watch             hot reload: the next book, only if it is whole and keeps the meaning of keys
    check             `paywitness policy check`, and a policy in words
    explain           what would be decided for a failure, and by which rule
    reading/          from bytes to typed values with their file, line and column
    block_parsers/    one parser for each block of a file

Every problem of a file is reported at once, as `file:line:column: key: what was found, what is allowed`. A policy
that contradicts its contract does not load. The rule that must hold: nothing in a file is ignored. A key is in
force, or refused.
"""
