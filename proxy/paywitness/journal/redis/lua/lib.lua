-- Times in seconds since 1970, as text. This file is put in front of every script. Functions that only some scripts
-- need are in files of their own, because Redis creates every function again whenever a script runs.
-- KEYS[1] is the prefix of every key. KEYS[2] ends with the level that the sidecar keeps (`core.levels`). The rules are
-- not here: Python judges, the scripts look up, compare and write.
--
-- o:ID           one operation: n number, v version, t and u lease token and end, f its identity, m its state, x its
--                changing index lines, s the seq of its last announcement, q and r sealed, e1 e2 ... its history
-- keys           kKEY -> ids, oldest first; aKEY -> its alias (refused: see lib_aliases.lua); tKEY -> its tombstone
-- x:LETTER       index: word NUL id, in the order of words (a guard's in the order that operations started)
-- leases         until -> number:id               due:PROVIDER          due -> number:id, of operations without a lease
-- told           the stream of changes with an announcement, by seq (counted in seq)
-- doubts         ID -> the gauges' values of it, of operations in doubt
-- credentials, sealed_credentials, accepted:ACCOUNT      accepted for an account: when, sealed, the newest
-- revisions, latest_revisions, cursors, meta, time       by name (meta: see replication_seen.lua); the latest time
-- time_behind, level                                     see tell_time, level.lua
-- epoch          changes whenever the journal has lost data; a missing epoch means that too
-- cursor_leases                                          see lib_cursor.lua
-- l:KEY, ledger_due, ledger_ages                         see lib_ledger.lua
-- n:NUMBER, events, notices_due, notices_to_relay, notices_done, buried
--                                                        see lib_webhook_events.lua, tombstone.lua, purge.lua
local P = KEYS[1]
local NUL = '\0'

local function redis_time()
  local time = redis.call('TIME')
  return time[1] .. '.' .. string.format('%06d', time[2])
end

-- The journal must be the one that the sidecar knows: the same epoch, and not older than the latest time that the
-- sidecar has seen. Else it lost its keys, or older ones were put back. The first sidecar to notice begins another
-- epoch, so that all others notice too.
local function check_memory(latest, at, epoch, mark)
  local stored = redis.call('GET', P .. 'epoch')
  if stored == epoch and tonumber(latest or 0) >= tonumber(mark) then
    return
  end
  if not stored or stored == epoch then
    stored = redis.sha1hex(at .. epoch .. mark)
    redis.call('SET', P .. 'epoch', stored)
    for _, counter in ipairs({'seq', 'takers'}) do
      redis.call('INCRBY', P .. counter, NUMBERS_SKIPPED)
    end
  end
  if tonumber(latest or 0) > tonumber(at) then
    redis.call('SET', P .. 'time', latest)
  end
  redis.call('HSET', P .. 'meta', 'rolled_back_at', at)
  error('JOURNALLOST ' .. stored, 0)
end

-- The journal's time: the given one, or Redis' own. It never goes back. If the clock was set back, it goes on at half
-- pace (`transitions.JournalTime`): time_behind is the journal's time then, a space, and the clock's. `asked`: given
-- time | epoch that the sidecar knows | latest time that the sidecar has seen.
local function tell_time(asked)
  local given, epoch, mark = string.match(asked, '^([^|]*)|([^|]*)|(.*)$')
  local at = given
  if at == '' then
    at = redis_time()
  end
  local latest = redis.call('SET', P .. 'time', at, 'GET')
  if epoch ~= '' then
    check_memory(latest, at, epoch, mark)
  end
  if latest and not (#latest == #at and latest <= at) and tonumber(latest) > tonumber(at) then
    local told, clock = string.match(redis.call('GET', P .. 'time_behind') or '', '^(%S+) (%S+)$')
    if told == latest and tonumber(at) > tonumber(clock) then
      latest = string.format('%.6f', math.max(tonumber(at), tonumber(latest) + (tonumber(at) - tonumber(clock)) / 2))
    end
    redis.call('SET', P .. 'time', latest)
    redis.call('SET', P .. 'time_behind', latest .. ' ' .. at)
    return latest
  end
  return at
end

-- The answer to a sidecar of a lower level than the journal's; nil: its level is high enough.
local function refusal()
  local level = tonumber(string.match(redis.call('GET', P .. 'level') or '', '^%d+') or '1')
  if level > tonumber(string.match(KEYS[2] or '', '%d+$') or '1') then
    return redis.error_reply('PWLEVEL the journal is at level ' .. level)
  end
  return nil
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

-- The newest operations under a guard, newest first.
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
