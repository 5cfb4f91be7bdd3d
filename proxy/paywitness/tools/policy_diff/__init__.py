"""`paywitness policy diff`: the decisions that an edit of a policy changes, and its effect on recorded operations.

comparison      two files or directories: facts, rows, codes and cases that differ
facts           a compiled policy as named facts; rows and table codes that were added, removed or changed
journal_reader  a journal opened for reading only
replay          one recorded operation under two policies, up to their first difference
backtest        all recorded operations under both: counts, money, examples
report          lines for a person, JSON for machines
"""
