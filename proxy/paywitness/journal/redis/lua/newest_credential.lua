-- account: the credential that was accepted last and is kept, and itself; or nothing.
local newest = redis.call('ZREVRANGE', P .. 'accepted:' .. ARGV[1], 0, 0)[1]
if not newest then
  return false
end
return {newest, redis.call('HGET', P .. 'sealed_credentials', ARGV[1] .. NUL .. newest)}
