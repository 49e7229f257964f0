-- Each request sends the heartbeats of a hundred sessions at once, as a proxy does for the sessions of its users. There
-- are a hundred groups with fixed sessions, and each request chooses one group at random.
local random, format = math.random, string.format

local threads = 0
function setup(thread)
  threads = threads + 1
  thread:set("seed", os.time() * 1000 + threads)
end

function init()
  math.randomseed(seed)
end

local bodies = {}
for group = 0, 99 do
  local ids = {}
  for number = 1, 100 do
    ids[number] = format('"00000000-0000-7000-8000-%012x"', group * 100 + number)
  end
  bodies[group] = '{"sessionIds":[' .. table.concat(ids, ",") .. "]}"
end

function request()
  return wrk.format("POST", "/sessions/heartbeats", { ["Content-Type"] = "application/json" }, bodies[random(0, 99)])
end

function done(summary, latency)
  local errors = summary.errors
  io.write(format("RESULT %d %d %d %d %d\n", summary.requests, summary.duration, latency:percentile(50),
    latency:percentile(99), errors.status + errors.connect + errors.read + errors.write + errors.timeout))
end
