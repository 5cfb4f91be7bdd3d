-- time | question (5): what is known.
return {'found', look(2, tell_time(ARGV[1]))}
