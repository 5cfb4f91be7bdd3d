-- ids ...: their rows, of those that are there.
local rows = {}
for _, id in ipairs(ARGV) do
  rows[#rows + 1] = row(id, false)
end
return rows
