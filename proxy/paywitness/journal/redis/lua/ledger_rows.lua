-- keys ...: their rows, links followed; false for what is not there.
local rows = {}
for i, key in ipairs(ARGV) do
  local found = ledger_row(key)
  if found and string.sub(found[3], 1, 1) == '@' then
    found = ledger_row(string.sub(found[3], 2))
  end
  rows[i] = found or false
end
return rows
