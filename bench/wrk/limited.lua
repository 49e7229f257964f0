-- As in created.lua, each request has a new user, and so creates a session. But the requests have no credential, and
-- use the capacity for which bench/limits.py sets a limit.
local random, format = math.random, string.format

local threads = 0
function setup(thread)
  threads = threads + 1
  thread:set("seed", os.time() * 1000 + threads)
end

function init()
  math.randomseed(seed)
end

local head = '{"userObjectId":"'
local tail = '","tenantObjectId":"00000000-0000-4000-8000-0000000000aa",'
  .. '"capacityId":"00000000-0000-4000-8000-000000000002","sessionKind":1}'

function request()
  local user = format("%08x-%04x-4%03x-8%03x-%06x%06x", random(0, 4294967295), random(0, 65535), random(0, 4095),
    random(0, 4095), random(0, 16777215), random(0, 16777215))
  return wrk.format("PUT", "/sessions", { ["Content-Type"] = "application/json" }, head .. user .. tail)
end

function done(summary, latency)
  local errors = summary.errors
  io.write(format("RESULT %d %d %d %d %d\n", summary.requests, summary.duration, latency:percentile(50),
    latency:percentile(99), errors.status + errors.connect + errors.read + errors.write + errors.timeout))
end
