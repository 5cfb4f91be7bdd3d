-- time | question (4) | start, or nothing where it is not permitted.
-- Nothing known: the operation is written as it starts, and owned. Else: what is known, for Python to judge.
local now = tell_time(ARGV[1])
local found = look(2, now)
local unknown = not (found[4] or found[6] or found[7]) and #found[8] == 0
if unknown and #ARGV > 5 then
  if redis.call('EXISTS', P .. 'o:' .. ARGV[6]) == 1 then
    return {'another'}
  end
  start(6, now, false)
  return {'owned', now}
end
return {'found', found}
