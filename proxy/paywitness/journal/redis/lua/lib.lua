-- Times in seconds since 1970, as text. What all scripts share: it is put in front of each of them. Redis makes every
-- function anew whenever a script runs: what only some need stands in a file of its own.
-- KEYS[1] is the prefix of every key. Rules are not here: Python judges, these look up, compare and write.
--
-- o:ID           one operation: n number, v version, t and u lease token and end, f what it is, m how it stands, x the
--                moving lines of the index, s the last number told, q and r sealed, e1 e2 ... its history
-- keys           kKEY -> ids, oldest first; aKEY -> its alias; tKEY -> its tombstone
-- x:LETTER       index: word NUL id, in the order of words (a guard's in the order that operations started)
-- leases         until -> number:id               due:PROVIDER          due -> number:id, of those that nobody holds
-- told           the stream of changes that tell something, by seq (counted in seq)
-- doubts         ID -> what the gauges tell of it, of those in doubt
-- credentials, sealed_credentials, accepted:ACCOUNT      accepted for an account: when, itself, the newest
-- revisions, latest_revisions, cursors, meta, time       by name (meta: see replication_seen.lua); the latest time told
-- cursor_leases                                          see lib_cursor.lua
-- l:KEY, ledger_due, ledger_ages                         see lib_ledger.lua
-- n:NUMBER, events, notices_due, notices_to_relay, notices_done, buried      see lib_webhook_events.lua, tombstone.lua, purge.lua
local P = KEYS[1]
local NUL = '\0'

-- The journal's time: given, or Redis' own; it never goes back.
local function tell_time(given)
  local at = given
  if at == '' then
    local time = redis.call('TIME')
    at = time[1] .. '.' .. string.format('%06d', time[2])
  end
  local latest = redis.call('SET', P .. 'time', at, 'GET')
  if latest and not (#latest == #at and latest <= at) and tonumber(latest) > tonumber(at) then
    redis.call('SET', P .. 'time', latest)
    return latest
  end
  return at
end

local function lines(text)
  return string.gmatch(text, '[^\n]+')
end

-- Looking up.

local function row(id, sealed)
  local found
  if sealed then
    found = redis.call('HMGET', P .. 'o:' .. id, 'n', 'v', 't', 'u', 'f', 'm', 's', 'q', 'r')
  else
    found = redis.call('HMGET', P .. 'o:' .. id, 'n', 'v', 't', 'u', 'f', 'm', 's')
  end
  if not found[1] then
    return nil
  end
  return {id, unpack(found)}
end

-- The newest under a guard, newest first.
local function guarded(guard, limit)
  if guard == '' then
    return {}
  end
  local from = guard .. NUL
  return redis.call('ZREVRANGEBYLEX', P .. 'x:g', '[' .. from .. '\255', '[' .. from, 'LIMIT', 0, limit)
end

local function id_in(member)
  return string.sub(member, -string.find(string.reverse(member), NUL, 1, true) + 1)
end
