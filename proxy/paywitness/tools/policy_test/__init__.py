"""`paywitness policy test`: cases and flows run through the core, without sending, storing or waiting.

case             a case as values, its YAML keys, its bytes and evidence; the facts that it may expect
flow             a flow as values, its YAML keys; the facts that a step may expect
case_file        reads a case file, with every problem's file:line:column
recognition      from a case's request to its operation
case_evaluation  one case through the core's functions: the facts that result
flow_evaluation  the steps of a flow in a row: the facts after each
flow_calls       calls of a flow: claim, attempts, replies
flow_evidence    inquiries and events of a flow
flow_journal     the journal's plans over dictionaries
coverage         which rules the cases reach
case_runner      runs the files, compares with the expectations, reports
"""
