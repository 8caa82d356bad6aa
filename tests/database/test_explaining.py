"""Tests the plan of a query, as the service sends the query."""

from collections.abc import Callable
from pathlib import Path

from service.config import Config
from service.database import query_files
from service.database.explaining import explain_query


def test_a_query_without_a_time_limit_is_explained_without_one(
    settings: Callable[..., Config], tmp_path: Path
) -> None:
    """The query's `statement_timeout = 0` overrides the settings."""
    (tmp_path / "a.sql").write_text(
        "-- name: wait_a_while()\n-- set: statement_timeout = 0\nselect pg_sleep(0.2);\n"
    )
    query = query_files.load(tmp_path, {})["wait_a_while"]
    database = settings(database__statement_timeout=0.05).database

    assert list(explain_query(database, query, {}, analyze=True))
