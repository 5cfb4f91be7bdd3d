-- time | skipped | at most | none that ends later than this, or '': operations with an expired lease, longest expired
-- first, as rows.
local now = tell_time(ARGV[1])
local over = now
if ARGV[4] ~= '' and tonumber(ARGV[4]) < tonumber(now) then
  over = ARGV[4]
end
local rows = {}
for _, member in ipairs(redis.call('ZRANGEBYSCORE', P .. 'leases', '-inf', over, 'LIMIT', ARGV[2], ARGV[3])) do
  rows[#rows + 1] = row(string.sub(member, 14), false)
end
return {now, rows}
