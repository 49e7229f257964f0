-- One of ten thousand users who hold a session already.
local random, format = math.random, string.format
local counter = 0

function setup(thread)
  counter = counter + 1
  thread:set("seed", os.time() * 1000 + counter)
end

function init(args)
  math.randomseed(seed)
  capacity = args[1] or "00000000-0000-4000-8000-000000000001"
  head = '{"userObjectId":"'
  tail = '","tenantObjectId":"00000000-0000-4000-8000-0000000000aa","capacityId":"' .. capacity .. '","sessionKind":1}'
end

function request()
  local user = format("00000000-0000-4000-8000-%012x", random(1, 10000))
  return wrk.format("PUT", "/sessions", { ["Content-Type"] = "application/json" }, head .. user .. tail)
end

function done(summary, latency, requests)
  io.write(format("RESULT %d %d %.3f %.3f %d\n", summary.requests, summary.duration, latency:percentile(50) / 1000,
    latency:percentile(99) / 1000, summary.errors.status + summary.errors.connect + summary.errors.read + summary.errors.timeout))
end
