"""What every request passes through, in this order:

1. `connections.py`: aiohttp's HTTP parser, and what it refuses.
2. `server.py`: makes the request with its context (`context.py`, `client_address.py`).
3. aiohttp's router: the handler of the path and method.
4. `cycle.py`, the only middleware: the deadline; heads that are too large, and an unknown `Expect`;
   `service/web/access.py`, if the route has a scope: the token, then the limit. Then the handler.
   Errors become problem documents.
5. `headers.py`: the headers of every response, added when it is sent; `compression.py` and
   `direct_response.py`: how it is sent.
6. `connections.py` again: the access line (`access_log.py`), the span, the metrics.
"""
