"""Tools for the person at the keyboard. They need several rooms at once. Nothing here carries a call.

    doctor/         is this installation fit to hold money
    policy_test/    policy test: case files run against their policies
    policy_diff/    policy diff: what an edit means; --against: what it would have changed in a journal
    policy_new/     policy new and policy schema: a first draft, and the JSON Schema for editors
    policy_explain  why the rules above the chosen one did not apply

A check changes nothing that lasts, says what it could not find out, and never shows a secret. The tools evaluate
calls with the core's own functions: a tool that decides by itself would be wrong one day.
"""
