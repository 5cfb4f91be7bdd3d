-- time | provider | provider NUL revision | revision | content: the latest revision of its provider from now on.
local now = tell_time(ARGV[1])
if redis.call('HGET', P .. 'latest_revisions', ARGV[2]) ~= ARGV[4] then
  redis.call('HSET', P .. 'revisions', ARGV[3], now .. ' ' .. ARGV[5])
  redis.call('HSET', P .. 'latest_revisions', ARGV[2], ARGV[4])
end
return 1
