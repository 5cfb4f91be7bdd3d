-- time | at most | taker: due events that no other taker holds, longest due first, then in the order they came.
local now = tell_time(ARGV[1])
local limit = tonumber(ARGV[2])
local at = {}
for _, name in ipairs({'notices_due', 'notices_to_relay'}) do
  local passed, kept = 0, 0
  repeat
    local found = redis.call('ZRANGEBYSCORE', P .. name, '-inf', now, 'WITHSCORES', 'LIMIT', passed, limit)
    for i = 1, #found, 2 do
      local number, due = found[i], tonumber(found[i + 1])
      local by = redis.call('HMGET', P .. 'n:' .. number, 'taker', 'taken')
      local others = by[1] and by[1] ~= ARGV[3] and tonumber(by[2]) + HELD_S > tonumber(now)
      if not others then
        kept = kept + 1
        at[number] = math.min(due, at[number] or due)
      end
    end
    passed = passed + limit
  until #found < limit * 2 or kept >= limit or passed > 20 * limit
end
local order = {}
for number in pairs(at) do
  order[#order + 1] = number
end
table.sort(order, function(one, other)
  if at[one] ~= at[other] then
    return at[one] < at[other]
  end
  return one < other
end)
local notices = {}
for i = 1, math.min(#order, limit) do
  local place = P .. 'n:' .. order[i]
  redis.call('HSET', place, 'taker', ARGV[3], 'taken', now)
  notices[i] = {order[i], unpack(redis.call('HMGET', place, 'what', 'standing', 'sealed'))}
end
return notices
