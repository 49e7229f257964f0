-- Each request is an open request for one of ten thousand users. All these users already have a live session.
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
  .. '"capacityId":"00000000-0000-4000-8000-000000000001","sessionKind":1}'

function request()
  local user = format("00000000-0000-4000-8000-%012x", random(1, 10000))
  return wrk.format("PUT", "/sessions", { ["Content-Type"] = "application/json" }, head .. user .. tail)
end

function done(summary, latency)
  local errors = summary.errors
  io.write(format("RESULT %d %d %d %d %d\n", summary.requests, summary.duration, latency:percentile(50),
    latency:percentile(99), errors.status + errors.connect + errors.read + errors.write + errors.timeout))
end
