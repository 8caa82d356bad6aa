"""Settings: config.toml, overridden by the environment, as frozen dataclasses.

This module has the type and the limits of each setting, config.toml its default. A wrong, unknown
or missing key is an `OperatorError` of one line.
"""

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from ipaddress import IPv6Network, ip_network
from pathlib import Path
from typing import Any, get_type_hints

from marshmallow import Schema, ValidationError
from marshmallow import fields as kinds
from marshmallow.validate import Length, OneOf, Range, Regexp

from service.errors import OperatorError

# Names that platforms use (https://devcenter.heroku.com/articles/config-vars).
PLATFORM_NAMES = {
    "ENVIRONMENT": ("service", "environment"),
    "HOST": ("server", "host"),
    "PORT": ("server", "port"),
    "WEB_CONCURRENCY": ("server", "workers"),
    "DATABASE_URL": ("database", "url"),
    "LOG_LEVEL": ("log", "level"),
}
PREFIX = "CATALOGUE_"
# https://html.spec.whatwg.org/multipage/browsers.html#ascii-serialisation-of-an-origin; not `null`,
# as any page can have that origin, and without a default port, which browsers omit.
ORIGIN = re.compile(
    r"\*|(?!http:.*:80$|https:.*:443$)"
    r"[a-z][a-z0-9+.-]*://(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::[1-9][0-9]{0,4})?"
)


def _setting(kind: kinds.Field[Any], *, is_secret: bool = False) -> Any:
    kind.required = True
    return field(metadata={"kind": kind}, repr=not is_secret)


class WholeNumber(kinds.Field[int]):
    """An integer of TOML, or its digits from the environment; not 2.5, not true."""

    def __init__(self, minimum: int, maximum: int | None = None) -> None:
        super().__init__(validate=Range(minimum, maximum))

    def _deserialize(self, value: Any, *_: Any, **__: Any) -> int:
        if type(value) is int or (isinstance(value, str) and re.fullmatch("-?[0-9]{1,9}", value)):
            return int(value)
        raise ValidationError("must be a whole number")


def _pattern(regex: str, expected: str) -> kinds.String:
    """Make a setting that is a text of this form, or empty."""
    return kinds.String(validate=Regexp(rf"(?:{regex})|\Z", error=f"must be {expected}, or empty"))


class Texts(kinds.Field[tuple[str, ...]]):
    """A list of TOML, or texts of the environment that are separated by commas."""

    def __init__(self, expected: str, is_right: Callable[[str], object], mistake: str) -> None:
        super().__init__()
        self._expected = expected
        self._is_right = is_right
        self._mistake = mistake

    def _deserialize(self, value: Any, *_: Any, **__: Any) -> tuple[str, ...]:
        items = value.split(",") if isinstance(value, str) else value
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            raise ValidationError(f"must be a list of {self._expected}")
        texts = tuple(item.strip() for item in items if item.strip())
        for text in texts:
            if not self._is_right(text):
                raise ValidationError(self._mistake.format(text))
        return texts


def _is_proxy(text: str) -> bool:
    try:
        network = ip_network(text)
    except ValueError:
        return text == "unix"
    return not (isinstance(network, IPv6Network) and network.network_address.ipv4_mapped)


ORIGINS = Texts(
    "origins, like https://example.com",
    ORIGIN.fullmatch,
    "{!r} is not an origin as browsers send it: scheme://host in lower case, with :port only if it"
    " is not the default one, and nothing after it; or *",
)
PROXIES = Texts(
    "addresses or networks, like 10.0.0.0/8",
    _is_proxy,
    "{!r} is neither an address nor a network, like 10.0.0.7, 10.0.0.0/8 or fd00::/8 (no bits after"
    " the prefix, IPv4 not written as IPv6), nor unix",
)
REPLICA_URLS = Texts(  # the message does not repeat the text, which has a password
    "URLs, like postgresql://user:password@host:port/name",
    re.compile("postgres(?:ql)?://[^,]+").fullmatch,
    "must be a list of URLs, each of one server, like postgresql://user:password@host:port/name",
)
DATABASE_URL = _pattern("postgres(?:ql)?://", "postgresql://user:password@host:port/name")
REDIS_URL = _pattern("(?:rediss?|unix)://", "redis://, rediss:// or unix://")
BEARER_TOKEN = _pattern(  # https://www.rfc-editor.org/rfc/rfc6750#section-2.1
    r"[A-Za-z0-9._~+/-]{16,}=*\Z",
    "16 or more letters, digits and -._~+/, as of openssl rand -hex 16",
)
TEXT = kinds.String(validate=Length(min=1))
SWITCH = kinds.Boolean(truthy={True, "true"}, falsy={False, "false"})
SECONDS = kinds.Float(validate=Range(0, 86400))
POSITIVE_SECONDS = kinds.Float(validate=Range(0.001, 86400))


@dataclass(frozen=True)
class Service:
    """The name of this deployment."""

    environment: str = _setting(TEXT)


@dataclass(frozen=True)
class Server:
    """HTTP; durations in seconds."""

    host: str = _setting(TEXT)
    port: int = _setting(WholeNumber(0, 65535))
    workers: int = _setting(WholeNumber(1, 512))
    max_connections: int = _setting(WholeNumber(1, 1_000_000))
    keepalive_timeout: float = _setting(SECONDS)
    request_timeout: float = _setting(POSITIVE_SECONDS)
    head_timeout: float = _setting(POSITIVE_SECONDS)
    body_timeout: float = _setting(POSITIVE_SECONDS)
    drain_delay: float = _setting(SECONDS)
    shutdown_timeout: float = _setting(POSITIVE_SECONDS)
    max_streams: int = _setting(WholeNumber(0, 10_000))
    require_if_match: bool = _setting(SWITCH)
    hsts: int = _setting(WholeNumber(0))
    cache_seconds: int = _setting(WholeNumber(0, 86400))
    cors_origins: tuple[str, ...] = _setting(ORIGINS)
    trusted_proxies: tuple[str, ...] = _setting(PROXIES)


@dataclass(frozen=True)
class Database:
    """PostgreSQL; durations in seconds. `repr` hides the URLs, which have passwords."""

    url: str = _setting(DATABASE_URL, is_secret=True)
    replica_urls: tuple[str, ...] = _setting(REPLICA_URLS, is_secret=True)
    max_replica_lag: float = _setting(POSITIVE_SECONDS)
    require_tls: bool = _setting(SWITCH)
    max_open: int = _setting(WholeNumber(1, 10_000))
    max_idle: int = _setting(WholeNumber(0, 10_000))
    max_idle_time: float = _setting(POSITIVE_SECONDS)
    acquire_timeout: float = _setting(POSITIVE_SECONDS)
    statement_timeout: float = _setting(POSITIVE_SECONDS)


@dataclass(frozen=True)
class Sharing:
    """Whether requests share statements."""

    enabled: bool = _setting(SWITCH)


@dataclass(frozen=True)
class Changes:
    """The feed of changes."""

    keep_days: int = _setting(WholeNumber(0, 3650))


@dataclass(frozen=True)
class Access:
    """What clients without a token may do."""

    anonymous: str = _setting(kinds.String(validate=OneOf(("write", "read", "none"))))


@dataclass(frozen=True)
class Limits:
    """How much a client may do. `repr` hides the URL, which has a password."""

    rate: int = _setting(WholeNumber(0, 1_000_000))
    burst: int = _setting(WholeNumber(1, 100_000_000))
    redis_url: str = _setting(REDIS_URL, is_secret=True)


@dataclass(frozen=True)
class Operations:
    """Liveness, readiness and metrics for operators. `repr` hides the token."""

    host: str = _setting(TEXT)
    port: int = _setting(WholeNumber(0, 65535))
    token: str = _setting(BEARER_TOKEN, is_secret=True)

    @property
    def are_metrics_on(self) -> bool:
        """Whether /metrics is served anywhere."""
        return bool(self.port or self.token)


@dataclass(frozen=True)
class Log:
    """Logs; durations in seconds."""

    level: str = _setting(kinds.String(validate=OneOf(("debug", "info", "warning", "error"))))
    format: str = _setting(kinds.String(validate=OneOf(("auto", "text", "json"))))
    slow_statement: float = _setting(SECONDS)


@dataclass(frozen=True)
class Tracing:
    """Spans; OpenTelemetry has its own settings in the environment."""

    enabled: bool = _setting(SWITCH)


@dataclass(frozen=True)
class Config:
    """All settings, and the folder of config.toml, which has queries/ and migrations/, too."""

    root: Path
    service: Service
    server: Server
    database: Database
    sharing: Sharing
    changes: Changes
    access: Access
    limits: Limits
    operations: Operations
    log: Log
    tracing: Tracing


SECTIONS: dict[str, type] = {
    name: kind for name, kind in get_type_hints(Config).items() if name != "root"
}


def load(path: Path, environ: Mapping[str, str]) -> Config:
    """Read config.toml at `path`, overridden by `environ`; raises `OperatorError`."""
    try:
        given = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise OperatorError(f"{path}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OperatorError(f"{path}: not TOML: {error}") from error
    if unknown := sorted(given.keys() - SECTIONS.keys()):
        raise OperatorError(f"{path}: unknown section or key: {unknown[0]}")
    overrides = _find_overrides(environ)
    sections: dict[str, Any] = {
        name: _load_section(name, kind, given.get(name, {}), overrides, path)
        for name, kind in SECTIONS.items()
    }
    config = Config(root=path.resolve().parent, **sections)
    if config.operations.port and config.operations.port == config.server.port:
        raise OperatorError("[operations] port: must differ from [server] port")
    return config


def require_database_url(config: Config) -> None:
    """Raise `OperatorError` without a URL: only commands and `serve` use the embedded database."""
    if not config.database.url:
        raise OperatorError(
            "DATABASE_URL is not set: expected postgresql://user:password@host/name"
        )


def _find_overrides(environ: Mapping[str, str]) -> dict[tuple[str, str], tuple[str, str]]:
    """Return (section, key) -> (variable, value); CATALOGUE_* names win over the platform's."""
    own = {
        f"{PREFIX}{section}_{key.name}".upper(): (section, key.name)
        for section, kind in SECTIONS.items()
        for key in fields(kind)
    }
    for variable in environ:
        # CATALOGUE_CONFIG is the path of config.toml itself.
        if variable.startswith(PREFIX) and variable not in own.keys() | {"CATALOGUE_CONFIG"}:
            raise OperatorError(f"the environment sets {variable}, which is not a setting")
    names = PLATFORM_NAMES | own
    return {names[name]: (name, environ[name]) for name in names if name in environ}


def _load_section(
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
