"""Settings: config.toml, overridden by the environment, as frozen dataclasses.

This module has the default, the type and the limits of each setting; config.toml shows the defaults
(a test compares them). `OperatorError` lists all wrong settings, one per line.
"""

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from functools import cached_property, partial
from ipaddress import IPv6Network, ip_network
from os.path import lexists
from pathlib import Path
from typing import Any, get_type_hints

from marshmallow import Schema, ValidationError
from marshmallow import fields as kinds
from marshmallow.validate import Length, OneOf, Range, Regexp

from service.errors import OperatorError
from service.text_files import decode, require_utf8

# Names that platforms use (https://devcenter.heroku.com/articles/config-vars).
PLATFORM_NAMES = {
    "ENVIRONMENT": "service.environment",
    "HEROKU_SLUG_COMMIT": "service.commit",
    "HOST": "server.host",
    "PORT": "server.port",
    "WEB_CONCURRENCY": "server.workers",
    "DATABASE_URL": "database.url",
    "LOG_LEVEL": "log.level",
}
OWN_NAME = re.compile("CATALOGUE_(?!CONFIG$)")  # CATALOGUE_CONFIG is the path of config.toml
# https://html.spec.whatwg.org/multipage/browsers.html#ascii-serialisation-of-an-origin; not `null`,
# as any page can have that origin, and without a default port, which browsers omit.
ORIGIN = re.compile(
    r"\*|(?!http:.*:80$|https:.*:443$)"
    r"[a-z][a-z0-9+.-]*://(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::[1-9][0-9]{0,4})?"
)


def _setting(default: object, kind: kinds.Field[Any], *, is_secret: bool = False) -> Any:
    return field(default=default, metadata={"kind": kind}, repr=not is_secret)


def _whole_number(minimum: int, maximum: int | None = None) -> kinds.Integer:
    """Make a setting that is an integer of TOML, or its digits from the environment."""

    def read(value: Any) -> Any:
        return int(value) if re.fullmatch("-?[0-9]{1,9}", str(value)) else value

    return kinds.Integer(
        strict=True,
        pre_load=read,
        validate=Range(minimum, maximum),
        error_messages={"invalid": "must be a whole number"},
    )


def _choice(*words: str) -> kinds.String:
    """Make a setting that is one of these words, whatever their case."""
    return kinds.String(pre_load=lambda given: str(given).lower(), validate=OneOf(words))


def _pattern(regex: str, expected: str) -> kinds.String:
    """Make a setting that is a text of this form, or empty."""
    return kinds.String(validate=Regexp(rf"(?:{regex})|\Z", error=f"must be {expected}, or empty"))


def _seconds(minimum: float, maximum: float = 300) -> kinds.Float:
    """Make a setting that is a time; the maximum refuses most values meant in milliseconds."""
    mistake = f"must be in seconds, from {minimum:g} to {maximum:g}"
    errors: Any = dict.fromkeys(("invalid", "special", "too_large"), mistake)
    return kinds.Float(validate=Range(minimum, maximum, error=mistake), error_messages=errors)


def _texts(expected: str, is_right: Callable[[str], object], mistake: str) -> kinds.Function:
    """Make a setting that is a list; in the environment, commas separate its texts."""

    def read(value: Any) -> tuple[str, ...]:
        items = value.split(",") if isinstance(value, str) else value
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            raise ValidationError(f"must be a list of {expected}")
        texts = tuple(item.strip() for item in items if item.strip())
        if wrong := [mistake.format(text) for text in texts if not is_right(text)]:
            raise ValidationError(wrong)
        return texts

    return kinds.Function(deserialize=read)


def _is_proxy(text: str) -> bool:
    try:
        network = ip_network(text)
    except ValueError:
        return text == "unix"
    return not (isinstance(network, IPv6Network) and network.network_address.ipv4_mapped)


ORIGINS = _texts(
    "origins, like https://example.com",
    ORIGIN.fullmatch,
    "{!r} is not an origin as browsers send it: scheme://host in lower case, with :port only if it"
    " is not the default one, and nothing after it; or *",
)
PROXIES = _texts(
    "addresses or networks, like 10.0.0.0/8",
    _is_proxy,
    "{!r} is neither an address nor a network, like 10.0.0.7, 10.0.0.0/8 or fd00::/8 (no bits after"
    " the prefix, IPv4 not written as IPv6), nor unix",
)
REPLICA_URLS = _texts(  # the message does not repeat the text, which has a password
    "URLs, like postgresql://user:password@host:port/name",
    re.compile("postgres(?:ql)?://[^,]+").fullmatch,
    "must be a list of URLs, each of one server, like postgresql://user:password@host:port/name",
)
DATABASE_URL = _pattern("postgres(?:ql)?://", "postgresql://user:password@host:port/name")
REDIS_URL = _pattern(
    r"(?:rediss?://(?:[^/?#]*@)?(?:[^/?#@:]*|\[[0-9a-fA-F:.]+\])(?::[0-9]{1,5})?(?:/[0-9]*)?"
    r"|unix://[^?#]*)(?:\?[^#@]*)?\Z",  # an @ after ? is part of a password
    "redis://:password@host:6379/0, rediss://... or unix:///path",
)
BEARER_TOKEN = _pattern(  # https://www.rfc-editor.org/rfc/rfc6750#section-2.1
    r"[A-Za-z0-9._~+/-]{16,}=*\Z",
    "16 or more letters, digits and -._~+/, as of openssl rand -hex 16",
)
EVERY_ADDRESS = {"0.0.0.0", "::"}  # noqa: S104 - compared, not bound
NOT_EMPTY = kinds.String(validate=Regexp(r"\s*\S", error="must not be empty"))
SWITCH = kinds.Boolean(
    truthy={True, "true", "True", "TRUE"}, falsy={False, "false", "False", "FALSE"}
)
SECONDS, POSITIVE_SECONDS = _seconds(0), _seconds(0.001)


@dataclass(frozen=True)
class Service:
    """The name of this deployment, and the commit that it runs."""

    environment: str = _setting("development", NOT_EMPTY)
    commit: str = _setting("", kinds.String(validate=Length(max=100)))


@dataclass(frozen=True)
class Server:
    """HTTP; durations in seconds."""

    host: str = _setting("127.0.0.1", NOT_EMPTY)
    port: int = _setting(8000, _whole_number(0, 65535))
    workers: int = _setting(1, _whole_number(1, 512))
    max_connections: int = _setting(4000, _whole_number(1, 1_000_000))
    keepalive_timeout: float = _setting(75.0, _seconds(0, 3600))
    request_timeout: float = _setting(10.0, POSITIVE_SECONDS)
    body_timeout: float = _setting(5.0, POSITIVE_SECONDS)
    drain_delay: float = _setting(0.0, SECONDS)
    shutdown_timeout: float = _setting(10.0, POSITIVE_SECONDS)
    max_streams: int = _setting(2, _whole_number(0, 10_000))
    require_if_match: bool = _setting(default=False, kind=SWITCH)
    hsts: int = _setting(0, _whole_number(0))
    cache_seconds: int = _setting(0, _whole_number(0, 86400))
    cors_origins: tuple[str, ...] = _setting((), ORIGINS)
    trusted_proxies: tuple[str, ...] = _setting((), PROXIES)


@dataclass(frozen=True)
class Database:
    """PostgreSQL; durations in seconds. `repr` hides the URLs, which have passwords."""

    url: str = _setting("", DATABASE_URL, is_secret=True)
    replica_urls: tuple[str, ...] = _setting((), REPLICA_URLS, is_secret=True)
    max_replica_lag: float = _setting(1.0, POSITIVE_SECONDS)
    require_tls: bool = _setting(default=False, kind=SWITCH)
    max_open: int = _setting(10, _whole_number(1, 10_000))
    max_idle: int = _setting(5, _whole_number(0, 10_000))
    max_idle_time: float = _setting(30.0, _seconds(0.001, 3600))
    acquire_timeout: float = _setting(2.0, POSITIVE_SECONDS)
    statement_timeout: float = _setting(3.0, POSITIVE_SECONDS)


@dataclass(frozen=True)
class Changes:
    """The feed of changes."""

    keep_days: int = _setting(30, _whole_number(0, 3650))


@dataclass(frozen=True)
class Access:
    """What clients without a token may do."""

    anonymous: str = _setting("write", _choice("write", "read", "none"))


@dataclass(frozen=True)
class Limits:
    """How much a client may do. `repr` hides the URL, which has a password."""

    rate: int = _setting(0, _whole_number(0, 1_000_000))
    burst: int = _setting(100, _whole_number(1, 100_000_000))
    redis_url: str = _setting("", REDIS_URL, is_secret=True)


@dataclass(frozen=True)
class Operations:
    """Liveness, readiness and metrics for operators. `repr` hides the token."""

    host: str = _setting("127.0.0.1", NOT_EMPTY)
    port: int = _setting(0, _whole_number(0, 65535))
    token: str = _setting("", BEARER_TOKEN, is_secret=True)

    @property
    def are_metrics_on(self) -> bool:
        """Whether /metrics is served anywhere."""
        return bool(self.port or self.token)


@dataclass(frozen=True)
class Log:
    """Logs; durations in seconds."""

    level: str = _setting("info", _choice("debug", "info", "warning", "error"))
    format: str = _setting("auto", _choice("auto", "text", "json"))
    slow_statement: float = _setting(0.5, SECONDS)


def _find_folder(name: str) -> cached_property[Path]:
    """Make a property: the folder next to config.toml, else the service's own."""
    own = Path(__file__).parents[1] / name
    return cached_property(lambda self: path if lexists(path := self.root / name) else own)


@dataclass(frozen=True)
class Config:
    """All settings, and where the files of the service are; `root` has config.toml."""

    root: Path
    service: Service
    server: Server
    database: Database
    changes: Changes
    access: Access
    limits: Limits
    operations: Operations
    log: Log
    # The file or the variable of each setting that is given, such as {"server.port": "PORT"}.
    sources: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    # Found once: a reload reads the same files, whatever happens to the folder.
    queries = _find_folder("queries")
    migrations = _find_folder("migrations")


NO_SECTIONS = ("root", "sources")
SECTIONS = {name: kind for name, kind in get_type_hints(Config).items() if name not in NO_SECTIONS}
# The name of a setting is like "server.port".
KEYS = {f"{section}.{key.name}": key for section, kind in SECTIONS.items() for key in fields(kind)}
SETTINGS: dict[str, kinds.Field[Any]] = {name: key.metadata["kind"] for name, key in KEYS.items()}
SECRETS = {name for name, key in KEYS.items() if not key.repr}
OWN_NAMES = {f"CATALOGUE_{name.replace('.', '_').upper()}": name for name in SETTINGS}
VARIABLES = {  # the setting of each; the last one that is set wins
    f"{variable}{suffix}": name
    for variable, name in (PLATFORM_NAMES | OWN_NAMES).items()
    for suffix in (("", "_FILE") if name in SECRETS else ("",))
}
SECRET_FILES = {name for name in VARIABLES if name.endswith("_FILE")}  # of paths
show_name = partial(re.sub, r"^(.*?)\.", r"[\1] ")  # [server] port


def load(path: Path, environ: Mapping[str, str]) -> Config:
    """Read config.toml at `path`, overridden by `environ`; raises `OperatorError`."""
    values = _read_file(path)
    # Platforms set empty ones.
    environ = {name: text for name, text in environ.items() if text.strip()}
    texts, mistakes = _read_secrets(environ)
    sources = {name: variable for variable, name in VARIABLES.items() if variable in texts}
    # A variable that is no setting is refused, like a key of the file that is none.
    sources |= {name: name for name in environ.keys() - VARIABLES.keys() if OWN_NAME.match(name)}
    given_by = dict.fromkeys(values, str(path)) | sources
    values |= {name: texts[variable] for name, variable in sources.items()}
    try:
        loaded = Schema.from_dict(SETTINGS)().load(values)  # nested: names have dots
    except ValidationError as error:
        mistakes += [
            f"{sources.get(name) or f'{path}: {show_name(name)}'}: {_describe_fault(name, problem)}"
            for name, problems in error.messages_dict.items()
            for problem in dict.fromkeys(problems)
        ]
    if mistakes:
        raise OperatorError("\n".join(sorted(mistakes)))
    sections = {name: kind(**loaded.get(name, {})) for name, kind in SECTIONS.items()}
    config = Config(root=path.parent.resolve(), **sections, sources=given_by)
    _check_together(config)
    return config


def _read_file(path: Path) -> dict[str, Any]:
    """Return the values of config.toml by the names of their settings."""
    try:
        given = tomllib.loads(decode(path.read_bytes()))
    except OSError as error:
        raise OperatorError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:  # TOMLDecodeError is one
        raise OperatorError(f"{path}: not TOML: {error}") from error
    values: dict[str, Any] = {}
    for section, keys in given.items():
        # A key without a section, or an empty unknown section, then is an unknown setting.
        if isinstance(keys, dict) and (keys or section in SECTIONS):
            values |= {f"{section}.{key}": value for key, value in keys.items()}
        else:
            values[section] = keys
    return values


def _check_together(config: Config) -> None:
    """Raise `OperatorError` if settings contradict each other."""
    server, database, operations = config.server, config.database, config.operations
    hosts = {operations.host, server.host}
    is_same_host = len(hosts) == 1 or hosts & EVERY_ADDRESS
    if operations.port and operations.port == server.port and is_same_host:
        raise OperatorError("[operations] port: must differ from [server] port on this host")
    statement_s = database.acquire_timeout + database.statement_timeout
    for name, seconds in (
        ("[server] body_timeout", server.body_timeout),
        ("[database] acquire_timeout + statement_timeout", statement_s),
    ):
        if seconds > server.request_timeout:
            raise OperatorError(
                f"{name} is {seconds:g} seconds: expected at most [server] request_timeout,"
                f" {server.request_timeout:g} seconds"
            )


def _read_secrets(environ: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return the variables, with the content of the files that they name, and mistakes."""
    texts, mistakes = dict(environ), []
    for name in SECRET_FILES & environ.keys():
        if (plain := name.removesuffix("_FILE")) in environ:
            mistakes.append(f"{plain} and {name} are both set: expected one of them")
        path = texts.pop(name)
        try:
            raw = Path(path).read_bytes()
            require_utf8(raw)
        except OSError as error:
            mistakes.append(f"{name}: {path}: cannot be read: {error.strerror}")
        except ValueError as error:
            mistakes.append(f"{name}: {path}: {error}")
        else:  # without the line end, which editors add
            texts[name] = raw.decode("utf-8-sig", "surrogateescape").rstrip("\r\n")
    return texts, mistakes


def require_database_url(config: Config) -> None:
    """Raise `OperatorError` without a URL: only commands and `serve` use the embedded database."""
    if not config.database.url:
        raise OperatorError(
            "DATABASE_URL is not set: expected postgresql://user:password@host/name"
        )


def _describe_fault(name: str, problem: str) -> str:
    """Return what is wrong with a setting; of an unknown one, which one may be meant."""
    if name in SETTINGS:
        return f"{problem[:1].lower()}{problem[1:].rstrip('.')}"
    nearest = get_close_matches(name, [*SETTINGS, *VARIABLES], n=1, cutoff=0.85)
    return "unknown setting" + "".join(f"; did you mean {show_name(each)}?" for each in nearest)
