-- Each request has a new idempotency key, so each request creates a submission.
local random, format = math.random, string.format

local threads = 0
function setup(thread)
  threads = threads + 1
  thread:set("seed", os.time() * 1000 + threads)
end

function init()
  math.randomseed(seed)
end

local body = '{"gateway":"bench","payload":{"event":"opened","text":"' .. string.rep("x", 170) .. '"}}'

function request()
  local key = format("%08x%08x%08x%08x", random(0, 4294967295), random(0, 4294967295), random(0, 4294967295),
    random(0, 4294967295))
  return wrk.format("POST", "/submissions", { ["Content-Type"] = "application/json", ["Idempotency-Key"] = key }, body)
end

function done(summary, latency)
  local errors = summary.errors
  io.write(format("RESULT %d %d %d %d %d\n", summary.requests, summary.duration, latency:percentile(50),
    latency:percentile(99), errors.status + errors.connect + errors.read + errors.write + errors.timeout))
end
