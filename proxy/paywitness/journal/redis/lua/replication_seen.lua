-- replication id | process | '1' if it took over from another | '1' if it has replicas | epoch and latest time that the
-- sidecar knows ('' if it knows none).
-- Stores the replication id under which the journal is written. Returns whether it ever had replicas, how many seconds
-- ago it came back as another Redis or lost data ('' if no sidecar noticed that), and its epoch.
local meta = P .. 'meta'
local known, process = unpack(redis.call('HMGET', meta, 'replication_id', 'process'))
local time = redis.call('TIME')
local now = time[1] .. '.' .. string.format('%06d', time[2])
local epoch, latest = unpack(redis.call('MGET', P .. 'epoch', P .. 'time'))
local is_another = known and known ~= ARGV[1] and (process ~= ARGV[2] or ARGV[2] == '' or ARGV[3] == '1')
local is_lost = ARGV[5] ~= '' and (epoch ~= ARGV[5] or tonumber(latest or 0) < tonumber(ARGV[6]))
if not epoch or (is_lost and epoch == ARGV[5]) then
  epoch = redis.sha1hex(now .. ARGV[1] .. ARGV[2])
  redis.call('SET', P .. 'epoch', epoch)
end
if known ~= ARGV[1] or is_lost then
  if is_another or is_lost then
    redis.call('HSET', meta, 'rolled_back_at', now)
    -- Numbers that were used and lost are not used again: a reader of the feed that has come to one of them would miss
    -- the new change with that number.
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
return {seen == '1' and 1 or 0, rolled_back and string.format('%.3f', math.max(0, now - rolled_back)) or '', epoch}
