"""The movie catalogue: a strict JSON-over-HTTP API on PostgreSQL.

A request flows one way: `web/routes.py` names its handler, which parses it (`web/requests.py`,
`web/schemas.py`), calls the catalogue (`movies.py`) and answers (`web/responses.py`); the catalogue
runs the statements of `queries/*.sql` (`database/`). `app.py` puts the parts together, and
`python -m service` starts them.
"""

__version__ = "1.0.0"
