"""`paywitness policy`.

group  the group, and the commands `check`, `test`, `explain` and `diff`
new    the commands `new` and `schema`
"""
