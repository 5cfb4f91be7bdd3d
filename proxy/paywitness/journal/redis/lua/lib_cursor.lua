-- cursor_leases  NAME -> token, until and history (apart by spaces): the lease on the cursor, and its data set.
-- After a failover an earlier lease is over for its holder, because numbers that it has read may be used again for
-- other changes. For other tokens it runs on, because its holder may still be at work.

local function history()
  local info = redis.pcall('INFO', 'replication')
  return type(info) == 'string' and string.match(info, 'master_replid:(%x+)') or '-'
end

-- The lease's token, whether the lease runs, and whether it belongs to this data set.
local function holder(name, now)
  local lease = redis.call('HGET', P .. 'cursor_leases', name)
  if not lease then
    return false, false, false
  end
  local token, till, of = string.match(lease, '^(%S*) (%S+) (%S+)$')
  return token, tonumber(till) > tonumber(now), of == history()
end
