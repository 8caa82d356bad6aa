-- The requests of wrk: wrk -s movies.lua URL -- reads|creates|mix MOVIES
-- Reads are of random ids from 1 to MOVIES, creates have varying titles; a mix is 90 % reads.
-- Requests are concatenated strings, to save CPU time: wrk shares the machine with the targets.
-- At the end, a line "result {...}" has the figures in JSON. Times are in microseconds.

local threads = {}

function setup(thread)
  table.insert(threads, thread)
  thread:set("number", #threads)
end

function init(args)
  local first = args[1] == "--" and 2 or 1 -- some versions of getopt keep "--"
  workload, movies = args[first], tonumber(args[first + 1])
  creates = 0
  math.randomseed(os.time() * 64 + number)
  ending = " HTTP/1.1\r\nHost: " .. wrk.headers["Host"] .. "\r\n"
end

local function read()
  return "GET /v1/movies/" .. math.random(movies) .. ending .. "\r\n"
end

local function create()
  creates = creates + 1
  local body = string.format(
    '{"title": "The Return of Number %d", "year": %d, "runtime": "%d mins", "genres": ["drama", "war"]}',
    math.random(1000000000), math.random(1888, 2020), math.random(60, 240)
  )
  return "POST /v1/movies" .. ending
    .. "Content-Type: application/json\r\nContent-Length: " .. #body .. "\r\n\r\n" .. body
end

function request()
  if workload == "creates" or (workload == "mix" and math.random(10) == 1) then
    return create()
  end
  return read()
end

function done(summary, latency)
  local sent = 0
  for _, thread in ipairs(threads) do
    sent = sent + thread:get("creates")
  end
  local errors = summary.errors
  io.write(string.format(
    'result {"requests": %d, "duration": %d, "p50": %d, "p99": %d, "max": %d, "creates_sent": %d, '
      .. '"errors": {"connect": %d, "read": %d, "write": %d, "status": %d, "timeout": %d}}\n',
    summary.requests, summary.duration,
    latency:percentile(50), latency:percentile(99), latency.max, sent,
    errors.connect, errors.read, errors.write, errors.status, errors.timeout
  ))
end
