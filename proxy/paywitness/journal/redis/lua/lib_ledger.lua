-- Times in seconds since 1970, as text. Ledger rows: l:KEY is version, a space, and text. A text that begins with @ is
-- a link to another key. ledger_due: when a row is due; ledger_ages: when it was last written.
local function ledger_row(key)
  local stored = redis.call('GET', P .. 'l:' .. key)
  if not stored then
    return nil
  end
  local version, text = string.match(stored, '^(%d+) (.*)$')
  return {key, version, text}
end

-- The key that a row links to; nil if it is no link. Links may lead to links: a payment can be merged more than once.
local LINKS_MAX = 8
local function linked_key(row)
  return row and string.sub(row[3], 1, 1) == '@' and string.sub(row[3], 2) or nil
end

-- Whether each of the rows would be written over the version before its own. A row is: key, version, text, due or ''.
local LEDGER_ROW = 4
local function ledger_fits(at, count)
  for i = 0, count - 1 do
    local stored = redis.call('GET', P .. 'l:' .. ARGV[at + i * LEDGER_ROW])
    local version = stored and tonumber(string.match(stored, '^%d+')) or 0
    if version ~= tonumber(ARGV[at + i * LEDGER_ROW + 1]) - 1 then
      return false
    end
  end
  return true
end

local function ledger_write(at, count, now)
  for i = 0, count - 1 do
    local row = at + i * LEDGER_ROW
    local key, version, text, due = ARGV[row], ARGV[row + 1], ARGV[row + 2], ARGV[row + 3]
    redis.call('SET', P .. 'l:' .. key, version .. ' ' .. text)
    redis.call('ZADD', P .. 'ledger_ages', now, key)
    if due ~= '' then
      redis.call('ZADD', P .. 'ledger_due', due, key)
    elseif version ~= '1' then
      redis.call('ZREM', P .. 'ledger_due', key)
    end
  end
end
