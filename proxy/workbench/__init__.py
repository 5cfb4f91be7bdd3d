"""The workbench: what needs several rooms at once and serves the person at the keyboard. Nothing here carries a call.

    doctor.py            whether this installation is fit to hold money; finding.py what a check says, examination.py
                         how checks are bounded in time
    doctor_policies.py   and the others of that name: one room's checks each

A check looks and changes nothing that lasts, says what it could not find out, and never shows a secret.
"""
