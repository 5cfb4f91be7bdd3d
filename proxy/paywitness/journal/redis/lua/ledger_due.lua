-- time | at most: rows that are due, longest due first.
local now = tell_time(ARGV[1])
local rows = {}
for _, key in ipairs(redis.call('ZRANGEBYSCORE', P .. 'ledger_due', '-inf', now, 'LIMIT', 0, ARGV[2])) do
  rows[#rows + 1] = ledger_row(key)
end
return rows
