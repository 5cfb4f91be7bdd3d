"""`paywitness ops`: look up operations, and act on those that wait for a person.

group    the group, and the commands `list` and `show`
actions  inquire, park, resume, resolve, cancel, close-incident
payments adopt, balance
credentials  credential show, map, unmap
approvals  approvals, approve
output   tables, timelines, JSON and CSV
"""
