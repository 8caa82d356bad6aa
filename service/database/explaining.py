"""Shows the plan of a query as the service sends it."""

from collections.abc import Iterator, Mapping
from contextlib import closing

import psycopg2

from service.config import Database
from service.database.queries import Query
from service.database.sessions import open_session
from service.database.urls import application_name


def explain_query(
    settings: Database, query: Query, parameters: Mapping[str, str], *, analyze: bool
) -> Iterator[str]:
    """Yield the lines of the plan; `analyze`: run the query, too.

    `parameters`: text as in SQL literals; those that are missing are null. The transaction is
    rolled back. `OperatorError` where PostgreSQL refuses it.
    """
    timeout = settings.statement_timeout if query.timeout is None else query.timeout
    options = "analyze, buffers" if analyze else "costs"
    message = f"{query.preamble(timeout)}explain ({options}) {query.sql}"
    with closing(open_session(settings.url, application_name=application_name())) as session:
        cursor = session.cursor()
        try:
            cursor.execute(message, dict.fromkeys(query.parameters) | dict(parameters))
        except psycopg2.Error as error:
            raise query.refuse(f"{query.name}: {error.diag.message_primary or error}") from error
        for (line,) in cursor:
            yield line
