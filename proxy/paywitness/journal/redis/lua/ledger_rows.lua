-- keys ...: their rows, links followed; false if there is no row.
local rows = {}
for i, key in ipairs(ARGV) do
  local found = ledger_row(key)
  for _ = 1, LINKS_MAX do
    local linked = linked_key(found)
    if not linked then
      break
    end
    found = ledger_row(linked)
  end
  rows[i] = found or false
end
return rows
