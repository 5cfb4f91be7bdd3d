-- Times in seconds since 1970, as text. Writes operations and their index lines.
-- An index line is a letter and a word.
local function entry_of(id, number, line)
  local letter, word = string.sub(line, 1, 1), string.sub(line, 2)
  if letter == 'g' then
    word = word .. NUL .. number
  end
  return P .. 'x:' .. letter, word .. NUL .. id
end

local function add_lines(id, number, text)
  for line in lines(text) do
    local index, member = entry_of(id, number, line)
    redis.call('ZADD', index, 0, member)
  end
end

local function reindex(id, number, before, after)
  if before == after then
    return
  end
  if before == '' or string.sub(after, 1, #before + 1) == before .. '\n' then -- the common case: no line is removed
    return add_lines(id, number, string.sub(after, #before + 1))
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

-- A sheet is the 18 arguments that write one operation, in this order.
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

-- The end of the lease: `sheet.lease` is a time, or `+` and the seconds from now.
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
  local listed = string.find('\n' .. index_before, '\ns', 1, true) -- only such an operation can be due or in doubt
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

-- Writes the sheet if the operation still has the version and lease that were read. Else: false, nothing is written.
local function write_over(sheet, now)
  local stored = redis.call('HMGET', P .. 'o:' .. sheet.id, 'v', 'n', 'x', 'u')
  if stored[1] ~= sheet.before or (sheet.held ~= '*' and (stored[4] or '') ~= sheet.held) then
    return false
  end
  write(sheet, stored[2], stored[3] or '', now, {})
  return true
end

-- A start is a sheet, and: created, its identity, its key, its permanent index lines, the sealed request; and '1' if
-- the key's newest operation stays the newest. `known`: the key may have operations already.
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
