-- time: a small real write, which health asks for.
return tell_time(ARGV[1])
