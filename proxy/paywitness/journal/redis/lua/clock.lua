-- time | key: the journal's time, the store's clock itself, and the row of the ledger, if there is one.
local now = tell_time(ARGV[1])
local given = string.match(ARGV[1], '^[^|]*')
local raw = given ~= '' and given or redis_time()
return {now, raw, ledger_row(ARGV[2])}
