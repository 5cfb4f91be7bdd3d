-- tombstones buried up to | webhook events received up to | at most, of each: forgotten; how many.
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
return forgotten
