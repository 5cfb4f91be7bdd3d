-- time: a small real write for the health check.
return tell_time(ARGV[1])
