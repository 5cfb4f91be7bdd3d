-- now | (key, version, '1' to delete it or '' to keep it for longer) ...: only rows still at that version. How many
-- were deleted.
local forgotten = 0
for at = 2, #ARGV, 3 do
  local key, version, forget = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  local stored = redis.call('GET', P .. 'l:' .. key)
  if stored and string.match(stored, '^%d+') == version then
    if forget ~= '' then
      redis.call('DEL', P .. 'l:' .. key)
      redis.call('ZREM', P .. 'ledger_ages', key)
      redis.call('ZREM', P .. 'ledger_due', key)
      forgotten = forgotten + 1
    else
      redis.call('ZADD', P .. 'ledger_ages', ARGV[1], key)
    end
  end
end
return forgotten
