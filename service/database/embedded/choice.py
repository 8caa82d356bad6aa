"""Chooses the database of a command: the configured one, or the embedded one."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from service.config import Config
from service.database import embedded
from service.database.urls import check_tls


@contextmanager
def with_database(config: Config) -> Iterator[Config]:
    """Yield the settings with the configured database, or with the embedded one."""
    if config.database.url:
        if config.database.require_tls:
            check_tls(config.database)
        yield config
        return
    with embedded.running(config.root / ".postgres") as url:
        yield replace(config, database=replace(config.database, url=url))
