-- Each request is a heartbeat for one of ten thousand sessions, with the credential in TENURE_KEY if that is set. If
-- SESSION_TOKENS names a file, the heartbeats of session n send the session token in line n of the file instead.
local random, format = math.random, string.format

local threads = 0
function setup(thread)
  threads = threads + 1
  thread:set("seed", os.time() * 1000 + threads)
end

function init()
  math.randomseed(seed)
end

local key = os.getenv("TENURE_KEY")
local headers = key and { ["Authorization"] = "Bearer " .. key } or {}
local tokens = {}
if os.getenv("SESSION_TOKENS") then
  for line in io.lines(os.getenv("SESSION_TOKENS")) do
    tokens[#tokens + 1] = { ["Authorization"] = "Bearer " .. line }
  end
end

function request()
  local number = random(1, 10000)
  return wrk.format("POST", format("/sessions/00000000-0000-7000-8000-%012x/heartbeat", number),
    tokens[number] or headers)
end

function done(summary, latency)
  local errors = summary.errors
  io.write(format("RESULT %d %d %d %d %d\n", summary.requests, summary.duration, latency:percentile(50),
    latency:percentile(99), errors.status + errors.connect + errors.read + errors.write + errors.timeout))
end
