"""Policies: YAML files read, checked and turned into the plain values of `core.policy`.

    bytes -> document   nodes that know their line and column; bounds on size, depth and aliases
          -> shipped    `extends`
          -> compile    the readers: schema (the list of keys), section, scalars, expressions, templates, and one
                        module for each thing that is read: operations, contracts, rows, inquiries, webhooks,
                        credentials, fallbacks, pacing, priorities, budgets, circuits
          -> book       all providers at one revision; watch puts the next one in its place

Every problem of a file is reported at once, as `file:line:column: key: what was found, what is allowed`. A policy that
contradicts its contract does not load. The rule that must hold: nothing in a file is ignored. A key is in force, or
refused.
"""
