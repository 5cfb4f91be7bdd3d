-- The journal's claim script, the provider, the journal's record script, the answer: for every call, in this order, so
-- that like Paywitness it answers nothing that is not written. `captured` is what `bench/nginx.py` makes of what
-- Paywitness sent; what differs from call to call is put in here, and nothing else is done: no body is read, no
-- identity computed, nothing encrypted.
local redis = require "nginx.redis"
local captured = require "captured"

local TIMEOUT_MS, IDLE_MS, POOL = 1000, 60000, 256
local count = 0

local function filled(template, values)
  local arguments = {}
  for at, pieces in ipairs(template) do
    if type(pieces) == "table" then
      local parts = {}
      for i, piece in ipairs(pieces) do
        parts[i] = type(piece) == "number" and values[piece] or piece
      end
      arguments[at] = table.concat(parts)
    else
      arguments[at] = pieces
    end
  end
  return arguments
end

local function run(connection, template, values, wanted)
  local reply, problem = connection:evalsha(unpack(filled(template, values)))
  if not reply or reply[1] ~= wanted then
    ngx.log(ngx.ERR, "wanted ", wanted, ", got ", reply and tostring(reply[1]) or problem)
    return ngx.exit(502)
  end
end

local function carry()
  ngx.req.read_body()
  count = count + 1
  -- operation id, key, guard, client key: as long as Paywitness' own
  local values = {
    string.format("op_%026d", count), string.format("%064d", count), string.format("%032d", count),
    ngx.var.http_idempotency_key,
  }
  local connection = redis:new()
  connection:set_timeout(TIMEOUT_MS)
  local connected, problem = connection:connect("127.0.0.1", captured.port)
  if not connected then
    ngx.log(ngx.ERR, "Redis: ", problem)
    return ngx.exit(504)
  end
  run(connection, captured.claim, values, "owned")
  local answer = ngx.location.capture("/provider" .. ngx.var.uri, {method = ngx.HTTP_POST})
  run(connection, captured.record, values, "written")
  connection:set_keepalive(IDLE_MS, POOL)
  ngx.status = answer.status
  ngx.header["Content-Type"] = answer.header["Content-Type"]
  ngx.header["Request-Id"] = answer.header["Request-Id"]
  ngx.header["Content-Length"] = #answer.body
  ngx.print(answer.body)
end

return {carry = carry}
