-- id | at most: its entries, oldest first.
local place = P .. 'o:' .. ARGV[1]
local version = tonumber(redis.call('HGET', place, 'v') or 0)
local names = {}
for i = 1, math.min(version, tonumber(ARGV[2])) do
  names[i] = 'e' .. i
end
if #names == 0 then
  return {}
end
return redis.call('HMGET', place, unpack(names))
