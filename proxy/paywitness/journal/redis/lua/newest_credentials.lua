-- account, how many: the credentials accepted last that are stored sealed, newest first, each as hash and sealed.
local found = {}
for _, credential in ipairs(redis.call('ZREVRANGE', P .. 'accepted:' .. ARGV[1], 0, tonumber(ARGV[2]) - 1)) do
  found[#found + 1] = {credential, redis.call('HGET', P .. 'sealed_credentials', ARGV[1] .. NUL .. credential)}
end
return found
