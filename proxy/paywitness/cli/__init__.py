"""The command line: one small file a command, no logic. New users start with `paywitness --help`.

main           the group of all commands; add a new command here
run, demo, sandbox, doctor, ca, redirect, circuits, journal    one command or group each
ops/           `paywitness ops`
policy/        `paywitness policy`
admin_options  options of all commands that use the admin port
"""
