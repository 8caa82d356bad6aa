"""What every request passes through.

`middlewares.py` has the order. `headers.py` adds the headers of every response, `access_log.py`
writes its log line, and `server.py` answers what never reaches the application.
"""
