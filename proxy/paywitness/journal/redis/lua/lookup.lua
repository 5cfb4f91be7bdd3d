-- time | question (4): what is known.
return {'found', look(2, tell_time(ARGV[1]))}
