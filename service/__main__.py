"""The command line: serve, migrate, queries.

python -m service serve             one process
gunicorn service.app:gunicorn       several, as the Procfile does
"""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import click
from aiohttp import web

from service import config as settings
from service import logs
from service.app import create_app, load_queries, prove
from service.config import Config
from service.database import embedded, migration_files, urls
from service.errors import OperatorError
from service.web.server import Runner, settle_memory


class Commands(click.Group):
    """An `OperatorError` is one line on stderr and exit status 1."""

    def invoke(self, ctx: click.Context) -> object:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except OperatorError as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=Commands)
@click.option(
    "--config",
    "path",
    envvar="CATALOGUE_CONFIG",
    default="config.toml",
    show_default=True,
    type=click.Path(path_type=Path),
    help="Where config.toml is; queries/ and migrations/ are beside it.",
)
@click.pass_context
def main(ctx: click.Context, path: Path) -> None:
    """The movie catalogue."""
    ctx.obj = settings.load(path, os.environ)
    logs.configure(ctx.obj.log)


@main.command()
@click.option("--migrate", is_flag=True, help="Apply the migrations first.")
@click.pass_obj
def serve(config: Config, *, migrate: bool) -> None:
    """Serve the API in one process."""
    with _database(config) as ready:
        if migrate:
            _upgrade(ready)
        asyncio.run(_serve(ready))


async def _serve(config: Config) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    runner = Runner(create_app(config), config.server)
    await runner.setup()
    try:
        site = web.TCPSite(
            runner, config.server.host, config.server.port, backlog=config.server.backlog
        )
        try:
            await site.start()
        except OSError as error:
            raise OperatorError(
                f"cannot listen on {config.server.host}:{config.server.port}: {error.strerror};"
                " HOST and PORT change where"
            ) from error
        settle_memory()
        _greet(config, runner)
        await stop.wait()
    finally:
        await runner.cleanup()


def _greet(config: Config, runner: Runner) -> None:
    host, port = runner.addresses[0][:2]
    base = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    movie = '{"title": "Moana", "year": 2016, "runtime": "107 mins", "genres": ["animation"]}'
    click.echo(f"listening on {base}", err=True)
    click.echo(f"database: {urls.shown(config.database.url)}", err=True)
    click.echo(f"try: curl -i -d '{movie}' {base}/v1/movies", err=True)


@main.group(invoke_without_command=True)
@click.pass_context
def migrate(ctx: click.Context) -> None:
    """Bring the database up to the newest migration; or one of the commands below."""
    if not ctx.invoked_subcommand:
        with _database(ctx.obj) as ready:
            _upgrade(ready)


@migrate.command()
@click.pass_obj
def status(config: Config) -> None:
    """Say which migrations are applied."""
    from service.database import migrations  # noqa: PLC0415 - alembic takes 0.4 s to load

    with _database(config) as ready:
        for entry in migrations.status(ready.database.url, _migrations(ready)):
            when = f"{entry.applied_at:%Y-%m-%d %H:%M:%S %Z}" if entry.applied_at else "pending"
            click.echo(f"{entry.version}  {when:<24} {entry.name or '(its file is missing)'}")


@migrate.command()
@click.pass_obj
def down(config: Config) -> None:
    """Take back the newest migration."""
    from service.database import migrations  # noqa: PLC0415 - as in `status`

    with _database(config) as ready:
        migrations.downgrade(ready.database.url, _migrations(ready), click.echo)


@migrate.command()
@click.argument("name")
@click.pass_obj
def new(config: Config, name: str) -> None:
    """Write an empty migration, NAME being like add_index_on_titles."""
    click.echo(migration_files.create(_migrations(config), name))


@migrate.command()
@click.pass_obj
def sql(config: Config) -> None:
    """Write out the SQL of all migrations, for an empty database, and touch none."""
    from service.database import migrations  # noqa: PLC0415 - as in `status`

    click.echo(migrations.offline_sql(_migrations(config)), nl=False)


@main.command()
@click.pass_obj
def queries(config: Config) -> None:
    """Hold queries/*.sql against the database, and list them."""
    loaded = load_queries(config)
    with _database(config) as ready:
        asyncio.run(prove(ready))
    for query in loaded.values():
        where = f"{query.path.name}:{query.line}"
        click.echo(f"{where:<16} {query.name}({', '.join(query.parameters)})")


def _upgrade(config: Config) -> None:
    from service.database import migrations  # noqa: PLC0415 - as in `status`

    migrations.upgrade(config.database.url, _migrations(config), partial(click.echo, err=True))


def _migrations(config: Config) -> Path:
    return config.root / "migrations"


@contextmanager
def _database(config: Config) -> Iterator[Config]:
    """Hand back the settings with a database: the configured one, or one of the service's own."""
    if config.database.url:
        yield config
        return
    with embedded.running(config.root / ".postgres") as url:
        yield replace(config, database=replace(config.database, url=url))


if __name__ == "__main__":
    main(prog_name="python -m service")
