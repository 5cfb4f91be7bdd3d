-- ids ...: the rows of those that exist.
local rows = {}
for _, id in ipairs(ARGV) do
  rows[#rows + 1] = row(id, false)
end
return rows
