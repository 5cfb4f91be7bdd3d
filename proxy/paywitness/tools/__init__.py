"""Command line tools that need several rooms at once. Nothing here serves a call.

    doctor/         is this installation fit to hold money
    policy_test/    policy test: case files run against their policies
    policy_diff/    policy diff: the decisions that an edit changes; --against: its effect on a recorded journal
    policy_new/     policy new and policy schema: a first draft, and the JSON Schema for editors
    policy_explain  why the rules above the chosen one did not apply

A check changes nothing permanently, reports everything that it could not find out, and never shows a secret. The tools
evaluate calls with the core's own functions, so that they cannot decide otherwise than the engine.
"""
