-- Shared by the scripts of webhook events. n:NUMBER is one: event, its identity, its progress, sealed, received at.
local HELD_S = 30 -- by one taker: no other gets the event meanwhile, in case it is being applied or relayed
local function place_notice(number, due, relay_due, done, received)
  for name, at in pairs({notices_due = due, notices_to_relay = relay_due, notices_done = done and received or ''}) do
    if at ~= '' then
      redis.call('ZADD', P .. name, at, number)
    else
      redis.call('ZREM', P .. name, number)
    end
  end
end
