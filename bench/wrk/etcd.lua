-- The first AHEAD requests of each thread grant leases with new ids. After that, requests alternate: one creates a key
-- with a lease that was granted earlier, if the key does not exist, and the next grants another lease. If the
-- environment variable KEEP_ALIVE is set, each request renews one of the leases that an earlier run has granted.
local random, format = math.random, string.format

local threads = 0
function setup(thread)
  threads = threads + 1
  thread:set("number", threads)
end

local alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
local function base64(text)
  local result = {}
  for i = 1, #text, 3 do
    local a, b, c = text:byte(i, i + 2)
    local value = a * 65536 + (b or 0) * 256 + (c or 0)
    for j = 3, 0, -1 do
      local digit = math.floor(value / 64 ^ j) % 64
      result[#result + 1] = (j == 0 and not c or j == 1 and not b) and "=" or alphabet:sub(digit + 1, digit + 1)
    end
  end
  return table.concat(result)
end

-- How many leases each thread grants before it creates the first key. A lease and its key may be requested on different
-- connections. With this distance between the two requests, the request for the key does not overtake the request for
-- the lease.
local AHEAD = 1000
local keep_alive = os.getenv("KEEP_ALIVE")
local granted, created = 0, 0

local function post(path, body)
  return wrk.format("POST", path, { ["Content-Type"] = "application/json" }, body)
end

function request()
  if keep_alive then
    return post("/v3/lease/keepalive", format('{"ID":"%d"}', number * 100000000 + random(1, AHEAD)))
  end
  if granted - created < AHEAD then
    granted = granted + 1
    return post("/v3/lease/grant", format('{"ID":"%d","TTL":"600"}', number * 100000000 + granted))
  end
  created = created + 1
  local id = number * 100000000 + created
  local key = base64(format("session/%d", id))
  return post("/v3/kv/txn", format(
    '{"compare":[{"key":"%s","target":"CREATE","create_revision":"0"}],"success":[{"request_put":{"key":"%s","value":"%s","lease":"%d"}}]}',
    key, key, key, id))
end

function done(summary, latency)
  local errors = summary.errors
  io.write(format("RESULT %d %d %d %d %d\n", summary.requests, summary.duration, latency:percentile(50),
    latency:percentile(99), errors.status + errors.connect + errors.read + errors.write + errors.timeout))
end
