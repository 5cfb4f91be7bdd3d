-- time | guard to check for other operations, or '' | acceptance (3) | count of ledger rows | rows | sheet.
-- Writes one change over its version. If another operation is under the guard, or the ledger is not as Python assumed,
-- nothing is written, and Python has to judge.
local refused = refusal()
if refused then
  return refused
end
local now = tell_time(ARGV[1])
local rows = tonumber(ARGV[6])
local sheet = sheet_at(7 + rows * LEDGER_ROW)
for _, member in ipairs(guarded(ARGV[2], 2)) do
  if id_in(member) ~= sheet.id then
    return {'judge'}
  end
end
if not ledger_fits(7, rows) then
  return {'judge'}
end
if not write_over(sheet, now) then
  return {'stale'}
end
ledger_write(7, rows, now)
accept(3, now)
return {'written', now}
