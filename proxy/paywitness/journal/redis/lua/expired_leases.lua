-- time | passed over | at most: those whose lease is over, longest over first, as rows.
local now = tell_time(ARGV[1])
local rows = {}
for _, member in ipairs(redis.call('ZRANGEBYSCORE', P .. 'leases', '-inf', now, 'LIMIT', ARGV[2], ARGV[3])) do
  rows[#rows + 1] = row(string.sub(member, 14), false)
end
return {now, rows}
