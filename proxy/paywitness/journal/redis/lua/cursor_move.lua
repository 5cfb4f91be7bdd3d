-- time | name | seq | token, or nothing: whether the token holds the cursor (`transitions.holds_cursor`). Never back.
local now = tell_time(ARGV[1])
if ARGV[4] ~= '' then
  local token, runs, known = holder(ARGV[2], now)
  if token ~= ARGV[4] or not runs or not known then
    return 0
  end
end
local come_to = redis.call('HGET', P .. 'cursors', ARGV[2])
if not come_to or tonumber(ARGV[3]) > tonumber(come_to) then
  redis.call('HSET', P .. 'cursors', ARGV[2], ARGV[3])
end
return 1
