-- time | question (5): the data found (see lib_lookup.lua).
return {'found', look(2, tell_time(ARGV[1]))}
