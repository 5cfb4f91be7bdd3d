-- buried at | count | (id, version, lease, key, provider, index that stays) ... | (key, ended at, tombstone) ...
-- Replaces operations by tombstones: all of them, if each is still as it was read, or none. Returns how many.
local count = tonumber(ARGV[2])
for i = 0, count - 1 do
  local at = 3 + i * 6
  local stored = redis.call('HMGET', P .. 'o:' .. ARGV[at], 'v', 'u')
  if stored[1] ~= ARGV[at + 1] or (stored[2] or '') ~= ARGV[at + 2] then
    return 0
  end
end
for i = 0, count - 1 do
  local at = 3 + i * 6
  local id, key, provider, index = ARGV[at], ARGV[at + 3], ARGV[at + 4], ARGV[at + 5]
  local place = P .. 'o:' .. id
  local stored = redis.call('HMGET', place, 'n', 'x', 'v')
  for version = 1, tonumber(stored[3]) do
    local entry = redis.call('HGET', place, 'e' .. version)
    local seq = entry and string.match(entry, '^%S+ (%d+) ')
    if seq and seq ~= '0' then
      redis.call('XDEL', P .. 'told', seq .. '-0')
    end
  end
  reindex(id, stored[1], stored[2] or '', '')
  reindex(id, stored[1], index, '')
  local from = id .. NUL
  for _, member in ipairs(redis.call('ZRANGEBYLEX', P .. 'x:a', '[' .. from, '[' .. from .. '\255')) do
    local alias_key = string.sub(member, #from + 1)
    local alias = redis.call('HGET', P .. 'keys', 'a' .. alias_key)
    if alias then
      forget_alias(alias_key, alias)
    end
  end
  local left = {}
  for other in string.gmatch(redis.call('HGET', P .. 'keys', 'k' .. key) or '', '%S+') do
    if other ~= id then
      left[#left + 1] = other
    end
  end
  if #left > 0 then
    redis.call('HSET', P .. 'keys', 'k' .. key, table.concat(left, ' '))
  else
    redis.call('HDEL', P .. 'keys', 'k' .. key)
  end
  redis.call('ZREM', P .. 'due:' .. provider, stored[1] .. ':' .. id)
  redis.call('DEL', place)
end
for at = 3 + count * 6, #ARGV, 3 do
  local key, ended, tombstone = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  local earlier = redis.call('HGET', P .. 'keys', 't' .. key)
  if not earlier or tonumber(string.match(earlier, '^%S+')) <= tonumber(ended) then
    redis.call('HSET', P .. 'keys', 't' .. key, ended .. ' ' .. tombstone)
    redis.call('ZADD', P .. 'buried', ARGV[1], key)
  end
end
return count
