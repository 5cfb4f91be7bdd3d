-- The look-ups of a claim or a change.
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

local GUARDED_BEFORE_MAX = 20 * GUARDED_MAX -- as in transitions.py

-- `core.guard.is_more_than_paid`: a line of its state or incident in the index, or a lease.
local function is_more_than_paid(id)
  local found = redis.call('HMGET', P .. 'o:' .. id, 'x', 't')
  local index = found[1] or ''
  return found[2] or string.sub(index, 1, 1) == '!' or string.find('\n' .. index, '\ns', 1, true)
end

-- A question of five: key, guard, ids (apart by spaces), credentials (lines of account NUL credential), keys of ledger
-- rows (apart by spaces).
-- Found: now, token (of everything read: equal tokens, nothing changed), rows, newest, disputed, alias, tombstone,
-- guarded ids (newest first), which credentials are accepted, ledger rows (with those that they link to).
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
  if #holders == GUARDED_MAX then
    for at_member, member in ipairs(guarded(guard, GUARDED_MAX + GUARDED_BEFORE_MAX)) do
      local id = id_in(member)
      if at_member > GUARDED_MAX and is_more_than_paid(id) then
        holders[#holders + 1] = id
        read[#read + 1] = id
        take(id, false)
      end
    end
  end
  local accepted = {}
  for credential in lines(credentials) do
    accepted[#accepted + 1] = redis.call('HEXISTS', P .. 'credentials', credential)
  end
  local ledger = {}
  for wanted_key in string.gmatch(ARGV[at + 4], '%S+') do
    local found = ledger_row(wanted_key)
    read[#read + 1] = wanted_key .. ' ' .. (found and found[2] or '-')
    ledger[#ledger + 1] = found
    for _ = 1, LINKS_MAX do
      local linked = linked_key(found)
      if not linked then
        break
      end
      found = ledger_row(linked)
      read[#read + 1] = found and found[2] or '-'
      ledger[#ledger + 1] = found
    end
  end
  local token = redis.sha1hex(table.concat(read, '\n'))
  return {now, token, rows, newest, contested, alias, tombstone, holders, accepted, ledger}
end
