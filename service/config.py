"""Settings: config.toml, overridden by the environment, as frozen dataclasses.

Every setting stands once below with its type and limits, and once in config.toml with its default:
there are no defaults here. A wrong, unknown or missing key is an `OperatorError` of one line.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_type_hints

from marshmallow import Schema, ValidationError
from marshmallow import fields as kinds
from marshmallow.validate import Length, OneOf, Range

from service.errors import OperatorError

# What platforms set, by their own names (https://devcenter.heroku.com/articles/config-vars).
PLATFORM_NAMES = {
    "ENVIRONMENT": ("service", "environment"),
    "HOST": ("server", "host"),
    "PORT": ("server", "port"),
    "WEB_CONCURRENCY": ("server", "workers"),
    "DATABASE_URL": ("database", "url"),
    "LOG_LEVEL": ("log", "level"),
}
PREFIX = "CATALOGUE_"
NOT_SETTINGS = {"CATALOGUE_CONFIG"}  # the path of config.toml itself
# https://html.spec.whatwg.org/multipage/browsers.html#ascii-serialisation-of-an-origin; not `null`,
# which is what any page can be that wants to.
ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::[1-9][0-9]{0,4})?")
USUAL_PORT = re.compile("http:.*:80|https:.*:443")  # browsers leave it out


def _setting(kind: kinds.Field[Any], *, secret: bool = False) -> Any:
    kind.required = True
    return field(metadata={"kind": kind}, repr=not secret)


def _text(*rules: Any) -> kinds.String:
    return kinds.String(validate=[Length(min=1), *rules])


class _Whole(kinds.Integer):
    """An integer of TOML, or its digits from the environment; not 2.5, not true."""

    def _validated(self, value: Any) -> int:
        if type(value) is int or (isinstance(value, str) and re.fullmatch("-?[0-9]{1,9}", value)):
            return int(value)
        raise ValidationError("must be a whole number")


def _whole(least: int, most: int | None = None) -> kinds.Integer:
    return _Whole(validate=Range(least, most))


def _seconds(least: float = 0, *, above: bool = False) -> kinds.Float:
    return kinds.Float(validate=Range(least, 86400, min_inclusive=not above))


def _switch() -> kinds.Boolean:
    return kinds.Boolean(truthy={True, "true"}, falsy={False, "false"})


def _is_database_url(url: str) -> None:
    if url and not url.startswith(("postgres://", "postgresql://")):
        raise ValidationError("must be postgresql://user:password@host:port/name, or empty")


class _Origins(kinds.Field[tuple[str, ...]]):
    """A list of TOML, or with commas in between from the environment, of origins or `*`."""

    def _deserialize(self, value: Any, *_: Any, **__: Any) -> tuple[str, ...]:
        items = value.split(",") if isinstance(value, str) else value
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            raise ValidationError("must be a list of origins, like https://example.com")
        origins = tuple(item.strip() for item in items if item.strip())
        for origin in origins:
            if not ORIGIN.fullmatch(origin) or USUAL_PORT.fullmatch(origin):
                raise ValidationError(
                    f"{origin!r} is no origin as browsers send it: scheme://host in lower case,"
                    " with :port only if it is not the usual one, and nothing after it; or *"
                )
        return origins


@dataclass(frozen=True)
class Service:
    """What this deployment is called."""

    environment: str = _setting(_text())


@dataclass(frozen=True)
class Server:
    """The HTTP side; durations in seconds."""

    host: str = _setting(_text())
    port: int = _setting(_whole(0, 65535))
    workers: int = _setting(_whole(1, 512))
    backlog: int = _setting(_whole(1, 65535))
    keepalive_timeout: float = _setting(_seconds())
    request_timeout: float = _setting(_seconds(above=True))
    body_timeout: float = _setting(_seconds(above=True))
    drain_delay: float = _setting(_seconds())
    shutdown_timeout: float = _setting(_seconds(above=True))
    require_if_match: bool = _setting(_switch())
    hsts: int = _setting(_whole(0))
    cors_origins: tuple[str, ...] = _setting(_Origins())


@dataclass(frozen=True)
class Database:
    """The PostgreSQL side; durations in seconds. The URL never shows: it holds a password."""

    url: str = _setting(kinds.String(validate=_is_database_url), secret=True)
    max_open: int = _setting(_whole(1, 10_000))
    max_idle: int = _setting(_whole(0, 10_000))
    max_idle_time: float = _setting(_seconds(above=True))
    connect_timeout: float = _setting(_seconds(above=True))
    acquire_timeout: float = _setting(_seconds(above=True))
    statement_timeout: float = _setting(_seconds(0.001))


@dataclass(frozen=True)
class Sharing:
    """How requests share statements."""

    enabled: bool = _setting(_switch())
    max_rows: int = _setting(_whole(1, 10_000))
    max_bytes: int = _setting(_whole(1))
    max_under_way: int = _setting(_whole(1, 10_000))
    max_waiting: int = _setting(_whole(1))


@dataclass(frozen=True)
class Log:
    """What is logged and how; durations in seconds."""

    level: str = _setting(kinds.String(validate=OneOf(("debug", "info", "warning", "error"))))
    format: str = _setting(kinds.String(validate=OneOf(("auto", "text", "json"))))
    slow_statement: float = _setting(_seconds())


@dataclass(frozen=True)
class Config:
    """All settings, and the folder of config.toml: queries/ and migrations/ are beside it."""

    root: Path
    service: Service
    server: Server
    database: Database
    sharing: Sharing
    log: Log


SECTIONS: dict[str, type] = {
    name: kind for name, kind in get_type_hints(Config).items() if name != "root"
}


def load(path: Path, environ: Mapping[str, str]) -> Config:
    """Read config.toml at `path`, overridden by `environ`; `OperatorError` where it is wrong."""
    try:
        given = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise OperatorError(f"{path}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OperatorError(f"{path}: not TOML: {error}") from error
    if unknown := sorted(given.keys() - SECTIONS.keys()):
        raise OperatorError(f"{path}: unknown section or key: {unknown[0]}")
    overrides = _overrides(environ)
    sections: dict[str, Any] = {
        name: _section(name, kind, given.get(name, {}), overrides, path)
        for name, kind in SECTIONS.items()
    }
    return Config(root=path.resolve().parent, **sections)


def _overrides(environ: Mapping[str, str]) -> dict[tuple[str, str], tuple[str, str]]:
    """(section, key) -> (variable, value); the service's own names win over the platform's."""
    own = {
        f"{PREFIX}{section}_{key.name}".upper(): (section, key.name)
        for section, kind in SECTIONS.items()
        for key in fields(kind)
    }
    for variable in environ:
        if variable.startswith(PREFIX) and variable not in own.keys() | NOT_SETTINGS:
            raise OperatorError(f"the environment sets {variable}, which is no setting")
    names = PLATFORM_NAMES | own
    return {names[name]: (name, environ[name]) for name in names if name in environ}


def _section(
    name: str,
    kind: type,
    given: Any,
    overrides: Mapping[tuple[str, str], tuple[str, str]],
    path: Path,
) -> Any:
    if not isinstance(given, dict):
        raise OperatorError(f"{path}: [{name}] must be a section")
    values = dict(given)
    sources = {}
    for key in fields(kind):
        if override := overrides.get((name, key.name)):
            sources[key.name], values[key.name] = override
    schema = Schema.from_dict({key.name: key.metadata["kind"] for key in fields(kind)})
    try:
        return kind(**schema().load(values))
    except ValidationError as error:
        key_name, problems = next(iter(dict(error.messages_dict).items()))
        source = sources.get(key_name) or f"{path}: [{name}] {key_name}"
        problem = str(problems[0]).rstrip(".")
        raise OperatorError(f"{source}: {problem[:1].lower()}{problem[1:]}") from error
