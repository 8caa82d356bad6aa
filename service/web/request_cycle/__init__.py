"""What every request passes through, in this order:

1. `server.py`: aiohttp's HTTP parser; the request id, the trace, its span and the client's address;
   an unknown `Expect`.
2. aiohttp's router: the handler of the path and method.
3. `in_flight.py`, a middleware: the deadline; the wait when the process stops.
4. `error_responses.py`, a middleware: errors become problem documents.
5. `service/web/access.py`, if the route has a scope: the token, then the limits. Then the handler.
6. `headers.py` and `cors.py`: the headers of every response, added when it is sent;
   `compression.py` and `direct_response.py`: how it is sent.
7. `access_log.py`: one line in the log.
"""
