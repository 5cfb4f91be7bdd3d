-- cursor_leases  NAME -> token, until and history (apart by spaces): who moves the cursor, and on which data set.
-- After a failover a lease of the time before is over for its holder: numbers that it has read may be given again, to
-- other changes. For others it runs on, for its holder may still be at work.

local function history()
  local info = redis.pcall('INFO', 'replication')
  return type(info) == 'string' and string.match(info, 'master_replid:(%x+)') or '-'
end

-- Whose it is, whether it runs, and whether it is of this data set.
local function holder(name, now)
  local lease = redis.call('HGET', P .. 'cursor_leases', name)
  if not lease then
    return false, false, false
  end
  local token, till, of = string.match(lease, '^(%S*) (%S+) (%S+)$')
  return token, tonumber(till) > tonumber(now), of == history()
end
