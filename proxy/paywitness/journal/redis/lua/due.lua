-- time | at most | providers that are full ...: due operations without a lease, longest due first, as rows.
local now = tell_time(ARGV[1])
local full, due = {}, {}
for i = 3, #ARGV do
  full[ARGV[i]] = true
end
for _, provider in ipairs(redis.call('SMEMBERS', P .. 'due')) do
  if not full[provider] then
    local found = redis.call(
      'ZRANGEBYSCORE', P .. 'due:' .. provider, '-inf', now, 'WITHSCORES', 'LIMIT', 0, ARGV[2])
    for i = 1, #found, 2 do
      due[#due + 1] = {tonumber(found[i + 1]), found[i]}
    end
  end
end
table.sort(due, function(one, other)
  if one[1] ~= other[1] then
    return one[1] < other[1]
  end
  return one[2] < other[2]
end)
local rows = {}
for i = 1, math.min(#due, tonumber(ARGV[2])) do
  rows[#rows + 1] = row(string.sub(due[i][2], 14), false)
end
return {now, rows}
