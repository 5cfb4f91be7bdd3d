-- time | rows: all of them over the versions before theirs, or none. Whether they were written.
local now = tell_time(ARGV[1])
local count = (#ARGV - 1) / LEDGER_ROW
if not ledger_fits(2, count) then
  return 0
end
ledger_write(2, count, now)
return 1
