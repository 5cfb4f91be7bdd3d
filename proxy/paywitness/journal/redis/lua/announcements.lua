-- after seq | at most: changes with an announcement: seq, row, version, entry.
local told = {}
for _, change in ipairs(redis.call('XRANGE', P .. 'told', '(' .. ARGV[1] .. '-0', '+', 'COUNT', ARGV[2])) do
  local id, version = string.match(change[2][2], '^(%S+) (%d+)$')
  local found = row(id, false)
  if found then
    local seq = string.match(change[1], '^%d+')
    told[#told + 1] = {seq, found, version, redis.call('HGET', P .. 'o:' .. id, 'e' .. version)}
  end
end
return told
