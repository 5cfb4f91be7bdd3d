-- time | provider | within seconds | at most | read at most | states ...: makes operations due sooner, returns how many
-- (`transitions.expedited_due_times`). Only the due times are written: no version, no history.
local now = tell_time(ARGV[1])
local due, within, limit = P .. 'due:' .. ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local states = {}
for i = 6, #ARGV do
  states[ARGV[i]] = true
end
local chosen = {}
local waiting = redis.call('ZRANGEBYSCORE', due, '(' .. now, '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[5])
for i = 1, #waiting, 2 do
  if #chosen == limit then
    break
  end
  local place = P .. 'o:' .. string.sub(waiting[i], 14)
  local standing = redis.call('HGET', place, 'm')
  -- [updated, first sent, ended, state, due, ...
  local before, state, after = string.match(standing or '', '^(%[[^,]+,[^,]+,[^,]+,"([%l_]+)",)[^,]+(,.*)$')
  if states[state] then
    local at = tonumber(waiting[i + 1])
    chosen[#chosen + 1] = {member = waiting[i], at = at, place = place, before = before, after = after}
  end
end
local hastened = 0
for i, one in ipairs(chosen) do
  if one.at > tonumber(now) + within then
    local at = string.format('%.17g', tonumber(now) + (i - 1) * within / #chosen)
    if not string.find(at, '.', 1, true) then
      at = at .. '.0'
    end
    redis.call('HSET', one.place, 'm', one.before .. at .. one.after)
    redis.call('ZADD', due, at, one.member)
    hastened = hastened + 1
  end
end
return hastened
