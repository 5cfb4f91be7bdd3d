-- time | question (4) | token | judged at | good for so many seconds | acceptance (3) | alias's key | alias |
-- count of sheets | sheets | start, or nothing.
-- All of what Python judged, over exactly what it read; else nothing, and what is known now.
local now = tell_time(ARGV[1])
local found = look(2, now)
if found[2] ~= ARGV[6] or tonumber(now) - tonumber(ARGV[7]) > tonumber(ARGV[8]) then
  return {'found', found}
end
local count = tonumber(ARGV[14])
local start_at = 15 + count * SHEET
if ARGV[start_at] and redis.call('EXISTS', P .. 'o:' .. ARGV[start_at]) == 1 then
  return {'another'}
end
now = ARGV[7]
for i = 0, count - 1 do
  local sheet = sheet_at(15 + i * SHEET)
  local stored = redis.call('HMGET', P .. 'o:' .. sheet.id, 'n', 'x')
  write(sheet, stored[1], stored[2] or '', now, {})
end
accept(9, now)
if ARGV[12] ~= '' then
  keep_alias(ARGV[12], ARGV[13])
end
if ARGV[start_at] then
  start(start_at, now, true)
end
return {'written', now}
