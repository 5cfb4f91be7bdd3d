-- Times in seconds since 1970, as text. What all scripts share: it is put in front of each of them.
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
-- revisions, latest_revisions, cursors, meta, time       by name (meta: see history_told.lua); the latest time told
-- cursor_leases                                          see cursor.lua
-- n:NUMBER, events, notices_due, notices_to_relay, notices_done, buried      see notice.lua, bury.lua, forget.lua
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
  if latest and tonumber(latest) > tonumber(at) then
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

local function disputed(ids)
  local newest_first = {}
  for id in string.gmatch(ids, '%S+') do
    table.insert(newest_first, 1, id)
  end
  for _, id in ipairs(newest_first) do
    local index = redis.call('HGET', P .. 'o:' .. id, 'x')
    if index and string.sub(index, 1, 1) == '!' then
      return id
    end
  end
  return false
end

-- A question of four: key, guard, ids (apart by spaces), credentials (lines of account NUL credential).
-- Found: now, token (of everything read: equal tokens, nothing changed), rows, newest, disputed, alias, tombstone,
-- guarded ids (newest first), which credentials are accepted.
local function look(at, now)
  local key, guard, wanted, credentials = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  local rows, seen, read = {}, {}, {}
  local function take(id, sealed)
    if seen[id] then
      return
    end
    seen[id] = true
    local found = row(id, sealed)
    if found then
      rows[#rows + 1] = found
      read[#read + 1] = id .. ' ' .. found[3] .. ' ' .. (found[5] or '-')
    else
      read[#read + 1] = id .. ' gone'
    end
  end
  local newest, contested, alias, tombstone = false, false, false, false
  if key ~= '' then
    local ids
    ids, alias, tombstone = unpack(redis.call('HMGET', P .. 'keys', 'k' .. key, 'a' .. key, 't' .. key))
    if ids then
      newest = string.match(ids, '%S+$')
      contested = disputed(ids)
      take(newest, true)
      if contested then
        take(contested, true)
      end
    end
    if alias then
      take(string.match(alias, '^[^\n]+'), true)
    end
    read[#read + 1] = (ids or '') .. '|' .. (contested or '') .. '|' .. (alias or '') .. '|' .. (tombstone or '')
  end
  for id in string.gmatch(wanted, '%S+') do
    take(id, true)
  end
  local holders = {}
  for _, member in ipairs(guarded(guard, GUARDED_MAX)) do
    local id = id_in(member)
    holders[#holders + 1] = id
    read[#read + 1] = id
    take(id, false)
  end
  local accepted = {}
  for credential in lines(credentials) do
    accepted[#accepted + 1] = redis.call('HEXISTS', P .. 'credentials', credential)
  end
  local token = redis.sha1hex(table.concat(read, '\n'))
  return {now, token, rows, newest, contested, alias, tombstone, holders, accepted}
end

-- Writing.

-- A line of the index is a letter and a word.
local function entry_of(id, number, line)
  local letter, word = string.sub(line, 1, 1), string.sub(line, 2)
  if letter == 'g' then
    word = word .. NUL .. number
  end
  return P .. 'x:' .. letter, word .. NUL .. id
end

local function reindex(id, number, before, after)
  if before == after then
    return
  end
  local new = {}
  for line in lines(after) do
    new[line] = true
  end
  for line in lines(before) do
    if new[line] then
      new[line] = nil
    else
      redis.call('ZREM', entry_of(id, number, line))
    end
  end
  for line in pairs(new) do
    local index, member = entry_of(id, number, line)
    redis.call('ZADD', index, 0, member)
  end
end

local function date(text, now)
  if text == 'now' then
    return now
  end
  return text
end

-- A sheet is what is written of one operation: so many arguments, in this order.
local SHEET = 18
local function sheet_at(at)
  local sheet = {
    id = ARGV[at], before = ARGV[at + 1], held = ARGV[at + 2], version = ARGV[at + 3],
    updated = ARGV[at + 4], first_sent = ARGV[at + 5], ended = ARGV[at + 6], body = ARGV[at + 7],
    token = ARGV[at + 8], lease = ARGV[at + 9], due = ARGV[at + 10], provider = ARGV[at + 11],
    index = ARGV[at + 12], doubt = ARGV[at + 13], entry = ARGV[at + 14], told = ARGV[at + 15],
    erase = ARGV[at + 16], response = ARGV[at + 17],
  }
  return sheet
end

-- Where it is held, until when: a time, or so many seconds from now.
local function lease_until(sheet, now)
  if string.sub(sheet.lease, 1, 1) == '+' then
    return string.format('%.17g', tonumber(now) + tonumber(string.sub(sheet.lease, 2)))
  end
  return sheet.lease
end

local function write(sheet, number, index_before, now, fields)
  local place, member = P .. 'o:' .. sheet.id, number .. ':' .. sheet.id
  local at = date(sheet.updated, now)
  local seq = 0
  if sheet.told ~= '' then
    seq = string.format('%.0f', redis.call('INCR', P .. 'seq'))
    redis.call('XADD', P .. 'told', seq .. '-0', 'o', sheet.id .. ' ' .. sheet.version)
    fields[#fields + 1] = 's'
    fields[#fields + 1] = seq
  end
  local standing = '[' .. at .. ',' .. date(sheet.first_sent, now) .. ',' .. date(sheet.ended, now) .. ',' .. sheet.body
  local n = #fields
  fields[n + 1], fields[n + 2] = 'v', sheet.version
  fields[n + 3], fields[n + 4] = 'm', standing
  fields[n + 5], fields[n + 6] = 'e' .. sheet.version, at .. ' ' .. seq .. ' ' .. sheet.entry
  n = n + 6
  if sheet.index ~= index_before then
    fields[n + 1], fields[n + 2] = 'x', sheet.index
    n = n + 2
  end
  if sheet.response ~= '' then
    fields[n + 1], fields[n + 2] = 'r', string.sub(sheet.response, 2)
    n = n + 2
  end
  local gone = {}
  if sheet.erase ~= '' then
    gone[1] = 'q'
  end
  if sheet.token ~= '' then
    local till = lease_until(sheet, now)
    fields[n + 1], fields[n + 2], fields[n + 3], fields[n + 4] = 't', sheet.token, 'u', till
    redis.call('ZADD', P .. 'leases', till, member)
  else
    gone[#gone + 1] = 't'
    gone[#gone + 1] = 'u'
    redis.call('ZREM', P .. 'leases', member)
  end
  redis.call('HSET', place, unpack(fields))
  if #gone > 0 then
    redis.call('HDEL', place, unpack(gone))
  end
  reindex(sheet.id, number, index_before, sheet.index)
  local listed = string.find('\n' .. index_before, '\ns', 1, true) -- only what is listed by its state is due, or in doubt
  if sheet.due ~= '' then
    redis.call('ZADD', P .. 'due:' .. sheet.provider, sheet.due, member)
    redis.call('SADD', P .. 'due', sheet.provider)
  elseif listed then
    redis.call('ZREM', P .. 'due:' .. sheet.provider, member)
  end
  if sheet.doubt ~= '' then
    redis.call('HSET', P .. 'doubts', sheet.id, sheet.doubt)
  elseif listed then
    redis.call('HDEL', P .. 'doubts', sheet.id)
  end
end

-- Written over exactly what was read, or not at all.
local function write_over(sheet, now)
  local stored = redis.call('HMGET', P .. 'o:' .. sheet.id, 'v', 'n', 'x', 'u')
  if stored[1] ~= sheet.before or (sheet.held ~= '*' and (stored[4] or '') ~= sheet.held) then
    return false
  end
  write(sheet, stored[2], stored[3] or '', now, {})
  return true
end

-- A start is a sheet, and: created, what it is, its key, the lines of the index that stay, the sealed request; and '1'
-- where the key stays that of its newest operation. `known`: the key may have operations already.
local function start(at, now, known)
  local sheet = sheet_at(at)
  local created, body, key = date(ARGV[at + SHEET], now), ARGV[at + SHEET + 1], ARGV[at + SHEET + 2]
  local index, request = ARGV[at + SHEET + 3], ARGV[at + SHEET + 4]
  local number = string.format('%012.0f', redis.call('INCR', P .. 'number'))
  local fields = {'n', number, 'f', '[' .. created .. ',' .. body}
  if request ~= '' then
    fields[5], fields[6] = 'q', string.sub(request, 2)
  end
  write(sheet, number, '', now, fields)
  reindex(sheet.id, number, '', index)
  local ids = known and redis.call('HGET', P .. 'keys', 'k' .. key)
  if ids then
    ids = ARGV[at + SHEET + 5] == '1' and (sheet.id .. ' ' .. ids) or (ids .. ' ' .. sheet.id)
  end
  redis.call('HSET', P .. 'keys', 'k' .. key, ids or sheet.id)
end

-- An alias is lines: operation id, the word of its client key, the rest.
local function alias_entries(key, alias)
  local id, word = string.match(alias, '^([^\n]*)\n([^\n]*)\n')
  return id, word .. NUL .. key .. NUL .. id, id .. NUL .. key
end

local function forget_alias(key, alias)
  local _, by_client_key, of_operation = alias_entries(key, alias)
  redis.call('ZREM', P .. 'x:k', by_client_key)
  redis.call('ZREM', P .. 'x:a', of_operation)
  redis.call('HDEL', P .. 'keys', 'a' .. key)
end

local function keep_alias(key, alias)
  local before = redis.call('HGET', P .. 'keys', 'a' .. key)
  if before then
    forget_alias(key, before)
  end
  local _, by_client_key, of_operation = alias_entries(key, alias)
  redis.call('ZADD', P .. 'x:k', 0, by_client_key)
  redis.call('ZADD', P .. 'x:a', 0, of_operation)
  redis.call('HSET', P .. 'keys', 'a' .. key, alias)
end

-- An acceptance of three: account, credential, the sealed one.
local function accept(at, now)
  local account, credential, sealed = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  if credential == '' then
    return
  end
  local pair = account .. NUL .. credential
  redis.call('HSET', P .. 'credentials', pair, now)
  if sealed ~= '' then
    redis.call('HSET', P .. 'sealed_credentials', pair, string.sub(sealed, 2))
  end
  if sealed ~= '' or redis.call('HEXISTS', P .. 'sealed_credentials', pair) == 1 then
    redis.call('ZADD', P .. 'accepted:' .. account, now, credential)
  end
end
