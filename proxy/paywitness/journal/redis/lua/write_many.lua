-- time | judged at | good for seconds | sheets: each is written if its operation is still as it was read. Which were.
local refused = refusal()
if refused then
  return refused
end
local now = tell_time(ARGV[1])
if tonumber(now) - tonumber(ARGV[2]) > tonumber(ARGV[3]) then
  return {}
end
local written = {}
for at = 4, #ARGV, SHEET do
  local sheet = sheet_at(at)
  if write_over(sheet, ARGV[2]) then
    written[#written + 1] = sheet.id
  end
end
return written
