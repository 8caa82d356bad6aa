"""The way of every request, in this order:

1. `connections.py` passes data to aiohttp's parser, and answers invalid HTTP. `Server` makes the
   request, and `contexts.py` its context, with the client's address (`client_address.py`).
2. aiohttp's router: the handler of the path and method.
3. `cycle.py`, the only middleware: the deadline; heads that are too large, and an unknown `Expect`;
   changes by pages of other origins; `service/web/access.py`, unless the route is open to all and
   no token is sent: the token, then the limit. Then the handler. Errors become problem documents.
4. `direct_response.py` or aiohttp sends the response, with the headers of all responses
   (`headers.py`); large ones may be compressed (`compression.py`).
5. aiohttp calls `EndOfRequest` in `connections.py`, which calls `RequestCycle.report`: the access
   line (`access_log.py`), the span, the metrics.

`runner.py` starts and stops the server.
"""
