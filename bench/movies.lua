-- The requests of wrk: wrk -s movies.lua URL -- reads|creates|mix MOVIES, or -- lines FILE
-- Reads are of random ids from 1 to MOVIES, creates have varying titles; a mix is 90 % reads. A line of FILE is
-- a path to get, or the JSON of a movie to create; the lines are sent in random order.
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
  lines = {}
  if workload == "lines" then
    for line in io.lines(args[first + 1]) do
      table.insert(lines, line)
    end
  end
  creates = 0
  math.randomseed(os.time() * 64 + number)
  ending = " HTTP/1.1\r\nHost: " .. wrk.headers["Host"] .. "\r\n"
end

local function get(path)
  return "GET " .. path .. ending .. "\r\n"
end

local function make_movie()
  return string.format(
    '{"title": "The Return of Number %d", "year": %d, "runtime": "%d mins", "genres": ["drama", "war"]}',
    math.random(1000000000), math.random(1888, 2020), math.random(60, 240)
  )
end

local function create(body)
  creates = creates + 1
  return "POST /v1/movies" .. ending
    .. "Content-Type: application/json\r\nContent-Length: " .. #body .. "\r\n\r\n" .. body
end

function request()
  if workload == "lines" then
    local line = lines[math.random(#lines)]
    return line:sub(1, 1) == "{" and create(line) or get(line)
  end
  if workload == "creates" or (workload == "mix" and math.random(10) == 1) then
    return create(make_movie())
  end
  return get("/v1/movies/" .. math.random(movies))
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
