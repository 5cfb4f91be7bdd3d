-- time | name | token | seconds: how far the cursor has come; the token holds it then. nil if it may not
-- (`transitions.cursor_lease`).
local now = tell_time(ARGV[1])
local token, runs, known = holder(ARGV[2], now)
if token and ((token == ARGV[3]) ~= runs or (runs and not known)) then
  return false
end
local till = string.format('%.17g', tonumber(now) + tonumber(ARGV[4]))
redis.call('HSET', P .. 'cursor_leases', ARGV[2], ARGV[3] .. ' ' .. till .. ' ' .. history())
return redis.call('HGET', P .. 'cursors', ARGV[2]) or '0'
