-- Deletes old rows. tombstones buried up to | webhook events received, keys refused, credentials accepted up to | at
-- most, of each | credentials accepted up to, an account's newest too | position in credentials to go on from: how many
-- were deleted, and the next position.
local forgotten = 0
for _, key in ipairs(redis.call('ZRANGEBYSCORE', P .. 'buried', '-inf', ARGV[1], 'LIMIT', 0, ARGV[3])) do
  redis.call('HDEL', P .. 'keys', 't' .. key)
  redis.call('ZREM', P .. 'buried', key)
  forgotten = forgotten + 1
end
for _, number in ipairs(redis.call('ZRANGEBYSCORE', P .. 'notices_done', '-inf', ARGV[2], 'LIMIT', 0, ARGV[3])) do
  local event = redis.call('HGET', P .. 'n:' .. number, 'event')
  if event then
    redis.call('HDEL', P .. 'events', event)
  end
  redis.call('DEL', P .. 'n:' .. number)
  redis.call('ZREM', P .. 'notices_done', number)
  forgotten = forgotten + 1
end
for _, key in ipairs(redis.call('ZRANGEBYSCORE', P .. 'refused', '-inf', ARGV[2], 'LIMIT', 0, ARGV[3])) do
  local alias = redis.call('HGET', P .. 'keys', 'a' .. key)
  if alias and refused_at(alias) then  -- a sidecar of an earlier release may have let the key join since
    forget_alias(key, alias)
  end
  redis.call('ZREM', P .. 'refused', key)
  forgotten = forgotten + 1
end
-- Accepted credentials, some at a time. An account's newest sealed credential stays as long as its payments.
local page = redis.call('HSCAN', P .. 'credentials', ARGV[5], 'COUNT', ARGV[3])
for i = 1, #page[2], 2 do
  local pair, at = page[2][i], tonumber(page[2][i + 1])
  if at <= tonumber(ARGV[2]) then
    local account, credential = string.match(pair, '^(%Z*)%z(.*)$')
    local accepted = P .. 'accepted:' .. account
    local newest_at = tonumber(redis.call('ZREVRANGE', accepted, 0, 0, 'WITHSCORES')[2] or math.huge)
    if at <= tonumber(ARGV[4]) or newest_at > at then
      redis.call('HDEL', P .. 'credentials', pair)
      redis.call('HDEL', P .. 'sealed_credentials', pair)
      redis.call('ZREM', accepted, credential)
      forgotten = forgotten + 1
    end
  end
end
return {forgotten, page[1]}
