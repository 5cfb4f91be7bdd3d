-- time | question (5) | count of ledger rows | rows | start, or nothing if the call may not start.
-- If the key and the guard are new (no retired payment of the guard either), and the ledger is as Python assumed, the
-- operation is written as it starts, and owned. Else: the rows found, for Python to judge.
local refused = refusal()
if refused then
  return refused
end
local now = tell_time(ARGV[1])
local key = ARGV[2]
local known = redis.call('HMGET', P .. 'keys', 'k' .. key, 'a' .. key, 't' .. key)
local unknown = not (known[1] or known[2] or known[3]) and #guarded(ARGV[3], 1) == 0
  and redis.call('EXISTS', P .. 'l:i:' .. ARGV[3]) == 0
local rows = tonumber(ARGV[7])
local start_at = 8 + rows * LEDGER_ROW
if unknown and #ARGV > start_at and ledger_fits(8, rows) then
  if redis.call('EXISTS', P .. 'o:' .. ARGV[start_at]) == 1 then
    return {'another'}
  end
  start(start_at, now, false)
  ledger_write(8, rows, now)
  return {'owned', now}
end
return {'found', look(2, now)}
