-- provider: its latest revision's name and content, or nothing.
local revision = redis.call('HGET', P .. 'latest_revisions', ARGV[1])
if not revision then
  return false
end
return {revision, redis.call('HGET', P .. 'revisions', ARGV[1] .. NUL .. revision)}
