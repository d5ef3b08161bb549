-- wrk sends the requests of a file in turn, and ends with one line of JSON. The file: each request's length in a line of
-- its own, then its bytes.
local requests, turn = {}, 0

function init(args)
  local file = assert(io.open(args[1], "rb"))
  for length in file:lines() do
    requests[#requests + 1] = file:read(tonumber(length))
  end
  file:close()
  -- Clients that begin at one place would ask for the same in the same instant.
  turn = tonumber(args[2] or "0")
end

function request()
  turn = turn % #requests + 1
  return requests[turn]
end

function done(summary, latency)
  local errors = summary.errors
  io.write(string.format(
    '{"requests":%d,"microseconds":%d,"bytes":%d,"errors":%d,"p50":%d,"p99":%d}\n',
    summary.requests, summary.duration, summary.bytes,
    errors.connect + errors.read + errors.write + errors.status + errors.timeout,
    latency:percentile(50), latency:percentile(99)))
end
