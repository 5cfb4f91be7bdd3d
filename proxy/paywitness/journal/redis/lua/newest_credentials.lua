-- account, how many: the credentials that were accepted last and are kept, each with itself sealed, newest first.
local found = {}
for _, credential in ipairs(redis.call('ZREVRANGE', P .. 'accepted:' .. ARGV[1], 0, tonumber(ARGV[2]) - 1)) do
  found[#found + 1] = {credential, redis.call('HGET', P .. 'sealed_credentials', ARGV[1] .. NUL .. credential)}
end
return found
