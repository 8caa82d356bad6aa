"""The command line: serve, web, config, migrate, queries, import, export, clients.

python -m service serve     one process
python -m service web       several, under gunicorn, as the Procfile does
"""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from operator import attrgetter
from pathlib import Path

import click
from psycopg2.extensions import set_wait_callback

from service import config as settings
from service import serving
from service.app import create_app, load_queries
from service.clients.commands import clients, report
from service.config import Config, require_database_url
from service.database.embedded import with_database
from service.database.migrations import files as migration_files
from service.database.query_testing import explain_query, run_tests
from service.database.transactions import wait_interruptibly
from service.database.urls import hide_password
from service.database.verification import verify_queries
from service.errors import OperatorError, Unavailable
from service.movies import formats
from service.movies.exporting import export_movies
from service.movies.importing import import_rows
from service.movies.movie import OUTPUT_FORMS
from service.movies.rows import open_source
from service.telemetry import logs


class Commands(click.Group):
    """Reports an error (exit status 1) and Ctrl-C (130) on stderr; both without a traceback."""

    def invoke(self, ctx: click.Context) -> object:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except (OperatorError, Unavailable) as error:
            if ctx.invoked_subcommand == "web":
                logs.log_start_failure(error)  # as under gunicorn
                ctx.exit(1)
            raise click.ClickException(str(error)) from error
        except KeyboardInterrupt:
            report("stopped")
            ctx.exit(128 + signal.SIGINT)


@click.group(cls=Commands)
@click.option(
    "--config",
    "path",
    envvar="CATALOGUE_CONFIG",
    default="config.toml",
    show_default=True,
    type=click.Path(path_type=Path),
    help="The path of config.toml, which may be next to your own queries/ and migrations/.",
)
@click.pass_context
def main(ctx: click.Context, path: Path) -> None:
    """The movie catalogue."""
    set_wait_callback(wait_interruptibly)  # Ctrl-C interrupts a wait for PostgreSQL
    ctx.call_on_close(partial(set_wait_callback, None))
    ctx.obj = settings.load(path, os.environ)
    logs.configure(ctx.obj.log)


main.add_command(clients)


@main.command()
@click.option("--migrate", is_flag=True, help="Apply new migrations first.")
@click.pass_obj
def serve(config: Config, *, migrate: bool) -> None:
    """Serve the API in one process."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the queries are loaded
    with with_database(config) as ready:
        if migrate:
            _upgrade(ready)
        set_wait_callback(None)  # aiopg waits in the event loop
        serving.run(ready)


@main.command("web")
@click.pass_context
def web_(ctx: click.Context) -> None:
    """Serve the API in several processes, under gunicorn."""
    config: Config = ctx.obj
    require_database_url(config)
    environ = {
        **os.environ,
        "CATALOGUE_CONFIG": str(ctx.find_root().params["path"]),
        "CATALOGUE_SERVER_WORKERS": str(config.server.workers),
    }
    environ.pop("WEB_CONCURRENCY", None)  # with a wrong value, importing gunicorn is a traceback
    program = str(Path(sys.executable).with_name("gunicorn"))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until gunicorn handles it
    os.execve(program, [program, "service.serving:make_worker"], environ)  # noqa: S606 - no shell


@main.command("config")
@click.pass_obj
def config_(config: Config) -> None:
    """Show each setting without secrets, and where it comes from; refuse what a start refuses."""
    for name in settings.SETTINGS:
        value = attrgetter(name)(config)
        if name in settings.SECRETS and value:
            urls = [value] if isinstance(value, str) else value
            is_url = name.startswith("database.")
            value = ", ".join(map(hide_password, urls)) if is_url else "***"
        source = config.sources.get(name, "default")
        click.echo(f"{settings.show_name(name)} = {json.dumps(value)}  # {source}")
    create_app(config)


@main.group(invoke_without_command=True)
@click.pass_context
def migrate(ctx: click.Context) -> None:
    """Apply new migrations, or run one of the commands below."""
    if not ctx.invoked_subcommand:
        with with_database(ctx.obj) as ready:
            _upgrade(ready)


@migrate.command("status")
@click.pass_obj
def show_status(config: Config) -> None:
    """List the migrations and whether they are applied."""
    from service.database.migrations import runner as migrations  # noqa: PLC0415 - loading alembic takes 0.15 s

    with with_database(config) as ready:
        for entry in migrations.status(ready.database.url, ready.migrations, report):
            state = "applied" if entry.applied else "pending"
            at = entry.applied and entry.applied.applied_at
            when = f"{at:%Y-%m-%d %H:%M:%S %Z}" if at else state
            click.echo(f"{entry.version}  {when:<24} {entry.name or '(its file is missing)'}")


@migrate.command()
@click.pass_obj
def down(config: Config) -> None:
    """Revert the newest migration."""
    from service.database.migrations import runner as migrations  # noqa: PLC0415 - as in `show_status`

    with with_database(config) as ready:
        migrations.downgrade(ready.database.url, ready.migrations, click.echo)


@migrate.command()
@click.argument("name")
@click.option("--function", help="A function to copy, like movie_matches(movies,jsonb).")
@click.pass_obj
def new(config: Config, name: str, function: str | None) -> None:
    """Create an empty migration; NAME is like add_index_on_titles."""
    statement = ""
    if function:
        from service.database.migrations.session import connect  # noqa: PLC0415 - as in `show_status`

        with with_database(config) as ready, connect(ready.database.url, report) as session:
            statement = migration_files.read_function(session, function)
    click.echo(migration_files.create(config.migrations, name, statement))
    report("before you apply it, make its timestamp newer than those of all applied migrations")


@migrate.command()
@click.pass_obj
def sql(config: Config) -> None:
    """Print the SQL of all migrations for an empty database; change no database."""
    from service.database.migrations import runner as migrations  # noqa: PLC0415 - as in `show_status`

    click.echo(migrations.render_offline_sql(config.migrations), nl=False)


def _split_pairs(
    ctx: click.Context, parameter: click.Parameter, texts: tuple[str, ...]
) -> tuple[tuple[str, str], ...]:
    """Split each NAME=VALUE at its first =."""
    for text in texts:
        if text.find("=") < 1:
            raise click.BadParameter(f"expected NAME=VALUE, found {text!r}", ctx, parameter)
    return tuple((name, value) for name, _, value in (text.partition("=") for text in texts))


pairs_option = partial(click.option, callback=_split_pairs, multiple=True)
format_option = partial(
    click.option, "--format", "kind", help="Needed if the file name does not tell it."
)


@main.group(invoke_without_command=True)
@click.pass_context
def queries(ctx: click.Context) -> None:
    """Check queries/*.sql against the database, or run one of the commands below."""
    if not ctx.invoked_subcommand:
        ctx.invoke(check)


@queries.command()
@click.pass_obj
def check(config: Config) -> None:
    """Check the files and each query (the default)."""
    loaded = load_queries(config)
    with with_database(config) as ready:
        is_writable = asyncio.run(verify_queries(ready, loaded, refuse_faults=True))
    files = len({query.path for query in loaded.values()})
    click.echo(f"{len(loaded)} queries in {files} files of {config.queries}: no mistakes found")
    if not is_writable:
        report("the database is read-only: the results of writes were not checked")


@queries.command("test")
@click.pass_obj
def test_(config: Config) -> None:
    """Run the service's operations with samples, and compare what the queries return.

    Everything is rolled back; ids that it takes stay used.
    """
    loaded = load_queries(config)
    with with_database(config) as ready:
        if not asyncio.run(verify_queries(ready, loaded, refuse_faults=True)):
            raise OperatorError("the database is read-only: the queries cannot be tested there")
        skipped = list[str]()
        may_run_all = run_tests(ready, loaded, skipped.append)
    for line in skipped:
        report(line)
    if not may_run_all:
        raise OperatorError("not all was tested: use the role that owns the tables, as for migrate")
    tested = f"as far as they were tested (skipped: {len(skipped)}), " if skipped else ""
    click.echo(f"{tested}the queries of {config.queries} return what the service expects")


@queries.command("list")
@click.pass_obj
def list_queries(config: Config) -> None:
    """List the queries with file and line, parameters, columns, and use."""
    for query in load_queries(config).values():
        expected = query.expected
        columns = ", ".join(expected.columns) or "nothing" if expected else "not known"
        click.echo(f"{query.location}  {query.name}({', '.join(query.parameters)})")
        click.echo(f"    returns  {columns}")
        click.echo(f"    used by  {expected.used_by if expected else 'nothing in the service'}")


@queries.command()
@click.argument("name")
@pairs_option("--param", "parameters", metavar="NAME=VALUE", help="A parameter; default: null.")
@click.option("--analyze", is_flag=True, help="Also run the query. Ids that it takes stay used.")
@click.pass_obj
def explain(
    config: Config, name: str, parameters: tuple[tuple[str, str], ...], *, analyze: bool
) -> None:
    """Show the plan of the query NAME, in a transaction that is rolled back."""
    loaded = load_queries(config)
    if name not in loaded:
        raise OperatorError(f"no query is called {name}: expected one of {', '.join(loaded)}")
    query = loaded[name]
    if unknown := sorted(dict(parameters).keys() - set(query.parameters)):
        raise OperatorError(
            f"--param {unknown[0]}: {name} takes {', '.join(query.parameters) or 'no parameters'}"
        )
    with with_database(config) as ready:
        for line in explain_query(ready.database, query, dict(parameters), analyze=analyze):
            click.echo(line)


@main.command("import")
@click.argument("file")
@format_option(type=click.Choice(formats.IMPORTED))
@pairs_option(
    "--map", "columns", metavar="FIELD=COLUMN", help="CSV: the column of a field; FIELD= for none."
)
@pairs_option("--where", metavar="COLUMN=VALUE", help="CSV: import only rows with this value.")
@click.option(
    "--allow-rejects", is_flag=True, help="Import the valid rows, even if others are rejected."
)
@click.option(
    "--rejects",
    "rejects_path",
    type=click.Path(path_type=Path),
    help="The file for rejected rows.  [default: FILE.rejects.ndjson]",
)
@click.option(
    "--update", is_flag=True, help="Change the movies that have the external ids of the rows."
)
@click.option("--dry-run", is_flag=True, help="Check everything, then roll back.")
@click.pass_obj
def import_(  # noqa: PLR0913 - its options
    config: Config,
    /,
    file: str,
    *,
    kind: str | None,
    columns: tuple[tuple[str, str], ...],
    where: tuple[tuple[str, str], ...],
    rejects_path: Path | None,
    **options: bool,
) -> None:
    """Import the movies in FILE (- for stdin): NDJSON, JSON, CSV or IMDb's title.basics.tsv.

    All rows or none: if one is rejected, nothing is imported and the exit status is 1.
    """
    form = formats.detect_format(file, kind, formats.IMPORTED)
    name = "stdin" if file == "-" else file
    rejects = rejects_path or Path(f"{name}.rejects.ndjson")
    if rejects.resolve() == Path(file).resolve():
        raise OperatorError(f"--rejects {rejects}: this is the file to be imported")
    loaded = load_queries(config)
    with _stop_on_signals(), open_source(file) as stream, with_database(config) as ready:
        rows = formats.read_rows(name, stream, form, dict(columns), where)
        result = import_rows(ready.database.url, loaded, rows, rejects, report=report, **options)
        report(result.summary(rejects, **options))
        if result.rejected and not options["allow_rejects"]:
            verb = "would be" if options["dry_run"] else "was"
            raise OperatorError(f"nothing {verb} imported: fix these rows, or pass --allow-rejects")


@main.command("export")
@click.argument("file")
@format_option(type=click.Choice(list(OUTPUT_FORMS)))
@click.pass_obj
def export(config: Config, file: str, kind: str | None) -> None:
    """Export all movies into FILE (- for stdout): NDJSON, JSON or CSV, by id.

    `import` can read the file again, with ids and times.
    """
    known = kind or ("ndjson" if file == "-" else None)
    form = formats.detect_format(file, known, OUTPUT_FORMS)
    with _stop_on_signals(), with_database(config) as ready:
        started = time.monotonic()
        try:
            exported = export_movies(ready.database.url, load_queries(config), file, form)
        except BrokenPipeError:
            sys.exit(128 + signal.SIGPIPE)  # the reader has closed the pipe, as `head` does
    report(f"exported {exported:,} movies in {time.monotonic() - started:.1f} s")


@contextmanager
def _stop_on_signals() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C; report both in one line."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt as error:
        raise OperatorError("interrupted") from error
    finally:
        signal.signal(signal.SIGTERM, before)


def _upgrade(config: Config) -> None:
    from service.database.migrations import runner as migrations  # noqa: PLC0415 - as in `show_status`
    from service.database.migrations.session import call  # noqa: PLC0415 - as in `show_status`

    migrations.upgrade(config.database.url, config.migrations, report)
    is_on = config.changes.keep_days > 0
    if call(config.database.url, report, "switch_movie_feed", is_on):
        report(f"the feed of changes is {'on' if is_on else 'off'} now")


if __name__ == "__main__":
    main(prog_name="python -m service")
