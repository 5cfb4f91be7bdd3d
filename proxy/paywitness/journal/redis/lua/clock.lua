-- time | key: the journal's time, the store's own clock, the ledger row, if there is one, and the next due times:
-- provider, due, ... | end of a lease | webhook event | relay | ledger row ('': none) | last seq of an announcement.
local now = tell_time(ARGV[1])
local given = string.match(ARGV[1], '^[^|]*')
local raw = given ~= '' and given or redis_time()
local function first(name)
  return redis.call('ZRANGE', P .. name, 0, 0, 'WITHSCORES')[2] or ''
end
local due = {}
for _, provider in ipairs(redis.call('SMEMBERS', P .. 'due')) do
  local at = first('due:' .. provider)
  if at ~= '' then
    due[#due + 1], due[#due + 2] = provider, at
  end
end
local next_due = {due, first('leases'), first('notices_due'), first('notices_to_relay'), first('ledger_due')}
next_due[6] = redis.call('GET', P .. 'seq') or '0'
return {now, raw, ledger_row(ARGV[2]) or false, next_due}
