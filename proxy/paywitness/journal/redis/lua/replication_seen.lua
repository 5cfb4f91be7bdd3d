-- replication id | process | '1' where it took over from another | '1' where it has replicas.
-- The journal is told under which history it is written. Whether it ever had replicas, and how many seconds ago it came
-- back as another Redis ('' where nobody knows of that).
local meta = P .. 'meta'
local known, process = unpack(redis.call('HMGET', meta, 'replication_id', 'process'))
local time = redis.call('TIME')
local now = time[1] .. '.' .. string.format('%06d', time[2])
if known ~= ARGV[1] then
  if known and (process ~= ARGV[2] or ARGV[2] == '' or ARGV[3] == '1') then
    redis.call('HSET', meta, 'rolled_back_at', now)
    -- Numbers that were given and forgotten are not given again: whoever has read the feed up to one of them would
    -- miss what comes under it.
    for _, counter in ipairs({'seq', 'takers'}) do
      redis.call('INCRBY', P .. counter, NUMBERS_SKIPPED)
    end
  end
  redis.call('HSET', meta, 'replication_id', ARGV[1], 'process', ARGV[2])
end
if ARGV[4] == '1' then
  redis.call('HSET', meta, 'replicas_seen', '1')
end
local seen, rolled_back = unpack(redis.call('HMGET', meta, 'replicas_seen', 'rolled_back_at'))
return {seen == '1' and 1 or 0, rolled_back and string.format('%.3f', math.max(0, now - rolled_back)) or ''}
