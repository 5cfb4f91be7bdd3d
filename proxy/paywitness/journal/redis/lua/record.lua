-- time | guard whose others are to be asked, or '' | acceptance (3) | sheet.
-- One change over its version. Where another stands under the guard, nothing is written: Python has to judge.
local now = tell_time(ARGV[1])
local sheet = sheet_at(6)
for _, member in ipairs(guarded(ARGV[2], 2)) do
  if id_in(member) ~= sheet.id then
    return {'judge'}
  end
end
if not write_over(sheet, now) then
  return {'stale'}
end
accept(3, now)
return {'written', now}
