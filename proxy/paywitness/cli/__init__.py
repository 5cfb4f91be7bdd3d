"""The command line: one small file a command, no logic. `paywitness --help` is where a newcomer starts.

main           the group of all commands: a new one is added here
run, demo, sandbox, doctor, ca, redirect, circuits, journal    one command or group each
ops/           `paywitness ops`
policy/        `paywitness policy`
admin_options  options of all commands that use the admin port
"""
