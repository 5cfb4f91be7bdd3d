"""The workbench: what needs several rooms at once and serves the person at the keyboard. Nothing here carries a call.

    doctor.py            whether this installation is fit to hold money; finding.py what a check says, examination.py
                         how checks are bounded in time
    doctor_policies.py   and the others of that name: one room's checks each

    policy_cases.py      policy test: case files run against their policies. case.py the values and keys of a case,
                         case_file.py how they are read, expectations.py what may be expected, recognition.py and
                         trial.py one case through the core, witness.py and coverage.py which rules were reached
    policy_diff.py       policy diff: what an edit means. policy_facts.py a policy as facts, row_changes.py its rows and
                         tables, policy_diff_told.py how it is told
    policy_hindsight.py  policy diff --against: what an edit would have changed. recorded.py a journal that is only
                         read, hindsight.py one operation of it under two policies
    supposition.py       policy explain: why the rules above the chosen one did not apply; why_not.py their conditions
    json_schema.py       policy schema
    draft.py             policy new; openapi.py a draft out of an OpenAPI file

A check looks and changes nothing that lasts, says what it could not find out, and never shows a secret. What
is tried is tried by the core's own functions: a tool that decides by itself would be wrong one day.
"""
