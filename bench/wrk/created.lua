-- Each request has a new user, so each request creates a session. If the variable TENURE_KEY is set, each request sends
-- the credential in it. If WITH_TOKEN is set, each request asks for a session token.
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
  .. '"capacityId":"00000000-0000-4000-8000-000000000001","sessionKind":1'
  .. (os.getenv("WITH_TOKEN") and ',"withToken":true}' or '}')

local key = os.getenv("TENURE_KEY")
local headers = { ["Content-Type"] = "application/json", ["Authorization"] = key and "Bearer " .. key }

function request()
  local user = format("%08x-%04x-4%03x-8%03x-%06x%06x", random(0, 4294967295), random(0, 65535), random(0, 4095),
    random(0, 4095), random(0, 16777215), random(0, 16777215))
  return wrk.format("PUT", "/sessions", headers, head .. user .. tail)
end

function done(summary, latency)
  local errors = summary.errors
  io.write(format("RESULT %d %d %d %d %d\n", summary.requests, summary.duration, latency:percentile(50),
    latency:percentile(99), errors.status + errors.connect + errors.read + errors.write + errors.timeout))
end
