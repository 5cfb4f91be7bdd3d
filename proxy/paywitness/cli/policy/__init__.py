"""`paywitness policy`.

group   the group, and the commands `check`, `test` and `explain`
diff    the command `diff`
new     the commands `new` and `schema`
"""
