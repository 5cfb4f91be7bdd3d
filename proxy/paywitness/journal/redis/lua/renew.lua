-- time | seconds | id, token ...: lengthens leases that run and have this token, never shortens one
-- (`transitions.renewed_lease`).
local now = tonumber(tell_time(ARGV[1]))
local till = string.format('%.17g', now + tonumber(ARGV[2]))
local renewed = {}
for i = 3, #ARGV, 2 do
  local place = P .. 'o:' .. ARGV[i]
  local stored = redis.call('HMGET', place, 't', 'u', 'n')
  if stored[1] == ARGV[i + 1] and tonumber(stored[2]) > now then
    renewed[#renewed + 1] = ARGV[i]
    if tonumber(till) > tonumber(stored[2]) then
      redis.call('HSET', place, 'u', till)
      redis.call('ZADD', P .. 'leases', till, stored[3] .. ':' .. ARGV[i])
    end
  end
end
return renewed
