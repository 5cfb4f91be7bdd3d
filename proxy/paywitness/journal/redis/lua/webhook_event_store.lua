-- event | its identity | its progress | sealed | received at | due | relay due | done: 1 if the event is new.
if redis.call('HEXISTS', P .. 'events', ARGV[1]) == 1 then
  return 0
end
local number = string.format('%012.0f', redis.call('INCR', P .. 'notice_number'))
redis.call('HSET', P .. 'events', ARGV[1], number)
redis.call('HSET', P .. 'n:' .. number, 'event', ARGV[1], 'what', ARGV[2], 'standing', ARGV[3], 'sealed', ARGV[4],
  'received', ARGV[5])
place_notice(number, ARGV[6], ARGV[7], ARGV[8] ~= '', ARGV[5])
return 1
