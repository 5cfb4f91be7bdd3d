-- number | its progress | due | relay due | done: written if the event exists.
local received = redis.call('HGET', P .. 'n:' .. ARGV[1], 'received')
if received then
  redis.call('HSET', P .. 'n:' .. ARGV[1], 'standing', ARGV[2])
  place_notice(ARGV[1], ARGV[3], ARGV[4], ARGV[5] ~= '', received)
  redis.call('HDEL', P .. 'n:' .. ARGV[1], 'taker', 'taken')
end
return 1
