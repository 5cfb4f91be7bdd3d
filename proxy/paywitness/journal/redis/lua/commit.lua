-- time | question (5) | token | judged at | good for so many seconds | acceptance (3) | alias's key | alias |
-- count of sheets | count of ledger rows | sheets | rows | start, or nothing.
-- Writes all of Python's judgement if the data is still exactly the data it read. Else: writes nothing, and returns the
-- present data.
local refused = refusal()
if refused then
  return refused
end
local now = tell_time(ARGV[1])
local found = look(2, now)
if found[2] ~= ARGV[7] or tonumber(now) - tonumber(ARGV[8]) > tonumber(ARGV[9]) then
  return {'found', found}
end
local count, rows = tonumber(ARGV[15]), tonumber(ARGV[16])
local rows_at = 17 + count * SHEET
local start_at = rows_at + rows * LEDGER_ROW
if not ledger_fits(rows_at, rows) then
  return {'found', found}
end
if ARGV[start_at] and redis.call('EXISTS', P .. 'o:' .. ARGV[start_at]) == 1 then
  return {'another'}
end
now = ARGV[8]
for i = 0, count - 1 do
  local sheet = sheet_at(17 + i * SHEET)
  local stored = redis.call('HMGET', P .. 'o:' .. sheet.id, 'n', 'x')
  write(sheet, stored[1], stored[2] or '', now, {})
end
ledger_write(rows_at, rows, now)
accept(10, now)
if ARGV[13] ~= '' then
  keep_alias(ARGV[13], ARGV[14])
end
if ARGV[start_at] then
  start(start_at, now, true)
end
return {'written', now}
