"""Shows the plan of a query as the service sends it."""

from collections.abc import Iterator, Mapping
from contextlib import closing

import psycopg2

from service.config import Database
from service.database.connections import application_name, open_session
from service.database.driver_errors import describe_error
from service.database.queries import Query


def explain_query(
    settings: Database, query: Query, parameters: Mapping[str, str], *, analyze: bool
) -> Iterator[str]:
    """Yield the lines of the plan; `analyze`: run the query, too.

    `parameters`: text as in SQL literals; those that are missing are null. The transaction is
    rolled back. `OperatorError` if PostgreSQL refuses it.
    """
    timeout = settings.statement_timeout if query.timeout is None else query.timeout
    options = "analyze, buffers" if analyze else "costs"
    message = f"{query.build_preamble(timeout)}explain ({options}) {query.sql}"
    with closing(open_session(settings.url, application_name=application_name())) as session:
        cursor = session.cursor()
        try:
            cursor.execute(message, dict.fromkeys(query.parameters) | dict(parameters))
        except psycopg2.Error as error:
            raise query.make_error(f"{query.name}: {describe_error(error)}") from error
        for (line,) in cursor:
            yield line
