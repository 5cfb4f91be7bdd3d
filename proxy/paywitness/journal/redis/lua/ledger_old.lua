-- written up to | at most: old rows, each with the row that it links to, or false.
local rows = {}
for _, key in ipairs(redis.call('ZRANGEBYSCORE', P .. 'ledger_ages', '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])) do
  local found = ledger_row(key)
  if found then
    local linked = string.sub(found[3], 1, 1) == '@' and ledger_row(string.sub(found[3], 2)) or false
    rows[#rows + 1] = {found, linked}
  else
    redis.call('ZREM', P .. 'ledger_ages', key)
  end
end
return rows
