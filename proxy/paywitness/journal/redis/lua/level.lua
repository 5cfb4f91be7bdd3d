-- time | level to raise to, or '': the journal's level, and when it was raised (0: never).
local now = tell_time(ARGV[1])
local level, raised = string.match(redis.call('GET', P .. 'level') or '', '^(%d+) (%S+)$')
level, raised = level or '1', raised or '0'
if ARGV[2] ~= '' and tonumber(ARGV[2]) > tonumber(level) then
  level, raised = ARGV[2], now
  redis.call('SET', P .. 'level', level .. ' ' .. raised)
end
return {level, raised}
