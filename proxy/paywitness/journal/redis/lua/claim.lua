-- time | question (4) | start, or nothing where it is not permitted.
-- Nothing known: the operation is written as it starts, and owned. Else: what is known, for Python to judge.
local now = tell_time(ARGV[1])
local key = ARGV[2]
local known = redis.call('HMGET', P .. 'keys', 'k' .. key, 'a' .. key, 't' .. key)
local unknown = not (known[1] or known[2] or known[3]) and #guarded(ARGV[3], 1) == 0
if unknown and #ARGV > 5 then
  if redis.call('EXISTS', P .. 'o:' .. ARGV[6]) == 1 then
    return {'another'}
  end
  start(6, now, false)
  return {'owned', now}
end
return {'found', look(2, now)}
