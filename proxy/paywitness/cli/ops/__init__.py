"""`paywitness ops`: look up operations, and act on those that wait for a person.

group    the group, and the commands `list` and `show`
actions  inquire, park, resume, resolve, cancel, close-incident
payments adopt, not-paid, balance
credentials  credential show, map, unmap
approvals  approvals, approve
output   tables, facts, JSON and CSV
timeline the timeline of an operation or payment
text     texts, names and times for a terminal
"""
