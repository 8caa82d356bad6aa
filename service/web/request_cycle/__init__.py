"""The way of every request, in this order:

1. `connections.py`: aiohttp's HTTP parser, and answers to invalid HTTP. `Server` makes the request
   and `context.py` its context, with the client's address (`client_address.py`).
2. aiohttp's router: the handler of the path and method.
3. `cycle.py`, the only middleware: the deadline; heads that are too large, and an unknown `Expect`;
   `service/web/access.py`, if the route has a scope: the token, then the limit. Then the handler.
   Errors become problem documents.
4. `direct_response.py` or aiohttp sends the response, with the headers of all responses
   (`headers.py`); large ones may be compressed (`compression.py`).
5. `cycle.py` again reports it: the access line (`access_log.py`), the span, the metrics.

`runner.py` starts and stops the server.
"""
