"""The movie catalogue: a strict JSON-over-HTTP API on PostgreSQL.

A request flows one way: `web/routes.py` names its handler; the handler parses it
(`catalogue/rules.py`), calls the catalogue (`catalogue/movies.py`) and responds
(`web/responses.py`). The catalogue runs the statements of `queries/*.sql` (`database/`).
`app.py` puts the parts together, and `python -m service` starts them.
"""

__version__ = "1.0.0"
