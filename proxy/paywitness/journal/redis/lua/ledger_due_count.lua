-- time | seconds | at most: how many payments are due within the seconds, among the rows that are due first.
local due_before = tonumber(tell_time(ARGV[1])) + tonumber(ARGV[2])
local count = 0
local due = redis.call('ZRANGEBYSCORE', P .. 'ledger_due', '-inf', string.format('%.6f', due_before), 'LIMIT', 0, ARGV[3])
for _, key in ipairs(due) do
  if string.sub(key, 1, 2) == 'p:' then
    count = count + 1
  end
end
return count
