"""`paywitness policy test`: cases run through the core, without sending, storing or waiting.

case             a case as values, its YAML keys, its bytes and evidence; the facts that it may expect
case_file        reads a case file, with every problem's file:line:column
recognition      from a case's request to its operation
case_evaluation  one case through the core's functions: the facts that result
coverage         which rules the cases reach
case_runner      runs the files, compares with the expectations, reports
"""
