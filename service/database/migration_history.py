"""What is applied, and what follows from it: what is to run, what to take back, what is refused.

alembic's table holds one version, and to alembic a file older than it is done, whether it ever ran
or not. `schema_migrations` holds every version that ran; what does not add up is refused.
"""

from typing import Any

from psycopg2.extensions import connection as Session  # noqa: N812 (a class, whatever its case)

from service.database.migration_files import Migration, locate
from service.errors import OperatorError


def applied_versions(session: Session) -> list[str]:
    """Read what has run; the two tables must agree, or something else has written to one."""
    applied = sorted(version for (version,) in rows(session, "schema_migrations", "version"))
    current = [version for (version,) in rows(session, "alembic_version", "version_num")]
    if current != applied[-1:]:
        raise OperatorError(
            f"alembic_version says {', '.join(current) or 'nothing'} and the newest in "
            f"schema_migrations is {', '.join(applied[-1:]) or 'none'}: "
            "they must be the same; find out what changed one of them and correct it"
        )
    return applied


def rows(session: Session, table: str, columns: str) -> list[tuple[Any, ...]]:
    """Read a table of the bookkeeping; one that is not there yet has no rows."""
    with session.cursor() as cursor:
        cursor.execute("select to_regclass(%s) is null", (table,))
        if cursor.fetchone() == (True,):
            return []
        cursor.execute(f"select {columns} from {table}")
        return cursor.fetchall()


def to_apply(migrations: list[Migration], applied: list[str]) -> list[Migration]:
    """Say what is to run; refuse what would leave a hole in the history."""
    known = [migration.version for migration in migrations]
    for version in applied:
        if version not in known and version < max(known, default=""):
            raise _missing(version)
    pending = [migration for migration in migrations if migration.version not in applied]
    for migration in pending:
        if applied and migration.version < applied[-1]:
            raise OperatorError(
                f"{locate(migration.path)}: older than {applied[-1]}, which is applied already: "
                "give it a new timestamp"
            )
    return pending


def to_take_back(migrations: list[Migration], applied: list[str]) -> Migration:
    """Say what the step back is: the newest that is applied, if there is a way back from it."""
    to_apply(migrations, applied)  # a hole in the history is refused here too
    if not applied:
        raise OperatorError("nothing is applied: there is nothing to take back")
    for migration in migrations:
        if migration.version == applied[-1]:
            if migration.down is None:
                raise OperatorError(f'{locate(migration.path)}: has no "-- migrate:down"')
            return migration
    raise _missing(applied[-1])


def nothing_to_do(migrations: list[Migration], applied: list[str]) -> str:
    """Tell an operator why nothing was applied."""
    newest = migrations[-1].version if migrations else "none"
    if applied[-1:] == [newest] or not applied:
        return f"nothing to do: the newest migration is {newest}"
    return f"nothing to do: the database is ahead, at {applied[-1]}; the newest file is {newest}"


def _missing(version: str) -> OperatorError:
    return OperatorError(f"migration {version} is applied but its file is missing: put it back")
