"""Settings: config.toml, overridden by the environment; a mistake is reported in one clear line."""

import json
import re
import tomllib
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pytest

from service import config
from service.errors import OperatorError

DEFAULTS = Path(__file__).parent.parent / "config.toml"
SECRET = "s3cret"

Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write the project's config.toml with one text replaced by another."""

    def change(old: str, new: str) -> Path:
        text = DEFAULTS.read_text("utf-8")
        assert text.count(old) == 1
        path = tmp_path / "config.toml"
        path.write_text(text.replace(old, new), "utf-8")
        return path

    return change


def refused(path: Path, **environ: str) -> str:
    """Load settings that must be refused, and return the message, which is one line."""
    with pytest.raises(OperatorError) as caught:
        config.load(path, environ)
    message = str(caught.value)
    assert "\n" not in message
    return message.replace(f"{path}:", "config.toml:")


def setting(loaded: config.Config, section: str, key: str) -> Any:
    """Return one setting."""
    return getattr(getattr(loaded, section), key)


def test_the_defaults_load() -> None:
    """The project's config.toml is valid, for development."""
    loaded = config.load(DEFAULTS, {})

    assert loaded.service.environment == "development"
    assert (loaded.server.host, loaded.server.port) == ("127.0.0.1", 8000)
    assert loaded.database.url == ""
    assert (loaded.database.max_open, loaded.database.max_idle) == (10, 5)
    assert loaded.database.max_idle_time == 30


def test_the_root_is_where_config_toml_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The path is absolute, so a later change of directory has no effect."""
    monkeypatch.chdir(DEFAULTS.parent)

    loaded = config.load(Path("config.toml"), {})

    assert loaded.root == DEFAULTS.parent


def test_the_file_and_the_classes_agree() -> None:
    """Every key of the file is a setting and every setting is in the file."""
    given = tomllib.loads(DEFAULTS.read_text("utf-8"))

    assert {section: list(keys) for section, keys in given.items()} == {
        section: [key.name for key in fields(kind)] for section, kind in config.SECTIONS.items()
    }


def test_every_default_is_loaded_unchanged() -> None:
    """With an empty environment, each setting has the value of the file."""
    given = tomllib.loads(DEFAULTS.read_text("utf-8"))

    loaded = asdict(config.load(DEFAULTS, {}))

    # JSON makes lists of tuples, as in TOML.
    assert {section: json.loads(json.dumps(loaded[section])) for section in given} == given


def test_every_key_is_explained() -> None:
    """Above each key is a comment, or a key that shares its comment."""
    lines = DEFAULTS.read_text("utf-8").splitlines()
    unexplained = []
    explained = False
    for line in lines:
        if line.startswith("#"):
            explained = True
        elif not line or line.startswith("["):
            explained = False
        elif not explained:
            unexplained.append(line)

    assert unexplained == []


def test_the_platform_names_are_at_the_top_of_the_file() -> None:
    """config.toml lists every variable with a special name."""
    head = DEFAULTS.read_text("utf-8").split("\n\n", 1)[0]

    assert [name for name in config.PLATFORM_NAMES if name not in head.split()] == []


@pytest.mark.parametrize(
    ("variable", "value", "section", "key", "expected"),
    [
        ("ENVIRONMENT", "production", "service", "environment", "production"),
        ("HOST", "0.0.0.0", "server", "host", "0.0.0.0"),  # noqa: S104 - nothing listens
        ("PORT", "5000", "server", "port", 5000),
        ("WEB_CONCURRENCY", "4", "server", "workers", 4),
        ("DATABASE_URL", "postgres://u@h/d", "database", "url", "postgres://u@h/d"),
        ("LOG_LEVEL", "debug", "log", "level", "debug"),
    ],
)
def test_platform_variables_are_taken(
    variable: str, value: str, section: str, key: str, expected: Any
) -> None:
    """Variables that platforms set override the file."""
    loaded = config.load(DEFAULTS, {variable: value})

    assert setting(loaded, section, key) == expected


@pytest.mark.parametrize(
    ("section", "key"),
    [(section, key.name) for section, kind in config.SECTIONS.items() for key in fields(kind)],
)
def test_every_setting_has_a_variable(section: str, key: str) -> None:
    """CATALOGUE_<SECTION>_<KEY> overrides the file, for every setting."""
    values = {
        "url": "postgres://u@h/d",
        "enabled": "false",
        "require_if_match": "true",
        "require_tls": "true",
        "level": "error",
        "format": "json",
        "cors_origins": "https://a.example,*",
        "trusted_proxies": "10.0.0.7,fd00::/8,unix",
        "token": "0123456789abcdef",
        "redis_url": "redis://:p@h/0",
        "anonymous": "read",
    }
    value = values.get(key, "7")

    loaded = config.load(DEFAULTS, {f"CATALOGUE_{section}_{key}".upper(): value})

    taken = setting(loaded, section, key)
    shown = ",".join(taken) if isinstance(taken, tuple) else str(taken)
    assert shown.removesuffix(".0").lower() == value


def test_a_variable_of_the_service_wins() -> None:
    """CATALOGUE_* is only for this service; a variable changes its setting and no other."""
    changed = config.load(DEFAULTS, {"CATALOGUE_SERVER_PORT": "5001", "PORT": "5000"})

    plain = config.load(DEFAULTS, {})
    assert changed.server.port == 5001
    assert changed.database == plain.database
    assert asdict(changed.server) | {"port": 8000} == asdict(plain.server)


def test_other_variables_are_ignored() -> None:
    """Other variables, and the place of config.toml, have no effect."""
    environ = {"PATH": "/bin", "CATALOGUE_CONFIG": "elsewhere.toml", "SERVER_PORT": "1"}

    loaded = config.load(DEFAULTS, environ)

    assert loaded == config.load(DEFAULTS, {})


@pytest.mark.parametrize("line", ["", "port = -1\n"])
def test_an_overridden_key_may_be_missing_or_wrong(write: Write, line: str) -> None:
    """Only the environment's value counts."""
    path = write("port = 8000\n", line)

    assert config.load(path, {"PORT": "5000"}).server.port == 5000


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[log]", "[logs]", "unknown section or key: logs"),
        ("[service]", "port = 1\n[service]", "unknown section or key: port"),
        ("max_idle = 5", "max_idle = 5\nmax_idel = 5", "[database] max_idel: unknown field"),
        ("max_open = 10\n", "", "[database] max_open: missing data for required field"),
        ("port = 8000", "port = 80.5", "[server] port: must be a whole number"),
        (
            *("port = 8000", "port = 65536"),
            "[server] port: must be greater than or equal to 0 and less than or equal to 65535",
        ),
        (
            *('level = "info"', 'level = "loud"'),
            "[log] level: must be one of: debug, info, warning, error",
        ),
    ],
)
def test_a_message_names_the_key_and_what_is_expected(
    write: Write, old: str, new: str, message: str
) -> None:
    """An operator can correct the file from the message alone."""
    assert refused(write(old, new)) == f"config.toml: {message}"


@pytest.mark.parametrize(
    ("before", "message"),
    [
        ('log = "info"\n', "[log] must be a section"),
        ("", "[log] level: missing data for required field"),
    ],
)
def test_a_missing_section_is_refused(tmp_path: Path, before: str, message: str) -> None:
    """The message names its first key; a value is not a section."""
    path = tmp_path / "config.toml"
    path.write_text(before + DEFAULTS.read_text("utf-8").split("[log]")[0])

    assert refused(path) == f"config.toml: {message}"


def test_an_unknown_variable_is_refused() -> None:
    """The message names a misspelt CATALOGUE_ variable."""
    message = refused(DEFAULTS, CATALOGUE_DATABASE_MAX_OPNE="5")

    assert message == "the environment sets CATALOGUE_DATABASE_MAX_OPNE, which is not a setting"


BAD = [
    ("environment", '"development"', "5"),
    ("environment", '"development"', '""'),
    ("host", '"127.0.0.1"\nport = 8000', '""\nport = 8000'),
    ("host", '"127.0.0.1"\nport = 0', '""\nport = 0'),
    ("port", "0", "65536"),
    ("token", '""', '"fifteen-letters"'),
    ("token", '""', '"sixteen letters "'),
    ("token", '""', "1234567890123456"),
    ("port", "8000", "-1"),
    ("port", "8000", "65536"),
    ("port", "8000", "80.5"),
    ("port", "8000", "true"),
    ("port", "8000", "[8000]"),
    ("workers", "1", "0"),
    ("workers", "1", "513"),
    ("keepalive_timeout", "75", "-1"),
    ("keepalive_timeout", "75", "true"),
    ("keepalive_timeout", "75", '"soon"'),
    ("keepalive_timeout", "75", "inf"),
    ("keepalive_timeout", "75", "nan"),
    ("request_timeout", "10", "0"),
    ("max_connections", "4000", "0"),
    ("head_timeout", "15", "0"),
    ("body_timeout", "5", "0"),
    ("drain_delay", "0", "-0.5"),
    ("shutdown_timeout", "10", "0"),
    ("hsts", "0", "-1"),
    ("hsts", "0", "true"),
    ("cors_origins", "[]", "1"),
    ("cors_origins", "[]", '["https://a.example/"]'),
    ("trusted_proxies", "[]", '"10.0.0.300"'),
    ("trusted_proxies", "[]", "[10]"),
    ("trusted_proxies", "[]", '["10.0.0.1/8"]'),
    ("trusted_proxies", "[]", '["localhost"]'),
    ("trusted_proxies", "[]", '["::ffff:10.0.0.7"]'),
    ("url", '""', '"mysql://u@h/d"'),
    ("url", '""', '"h/d"'),
    ("url", '""', "1"),
    ("rate", "0", "-1"),
    ("rate", "0", "0.5"),
    ("burst", "100", "0"),
    ("redis_url", '""', '"localhost:6379"'),
    ("anonymous", '"write"', '"all"'),
    ("require_tls", "false", "2"),
    ("max_open", "10", "0"),
    ("max_open", "10", "10001"),
    ("max_open", "10", "2.5"),
    ("max_open", "10", '"many"'),
    ("max_idle", "5", "-1"),
    ("max_idle_time", "30", "0"),
    ("max_idle_time", "30", "86401"),
    ("acquire_timeout", "2", "0"),
    ("statement_timeout", "3", "0"),
    ("enabled", "true", '"yes"'),
    ("enabled", "true", "2"),
    ("enabled", "true", "[]"),
    ("enabled", "false", '"yes"'),
    ("require_if_match", "false", "2"),
    ("require_if_match", "false", '"yes"'),
    ("slow_statement", "0.5", "-1"),
    ("level", '"info"', '"loud"'),
    ("level", '"info"', '"INFO"'),
    ("format", '"auto"', '"xml"'),
    ("format", '"auto"', "1"),
]


@pytest.mark.parametrize(("key", "good", "bad"), BAD)
def test_a_bad_value_is_refused(write: Write, key: str, good: str, bad: str) -> None:
    """A value of a wrong type or out of range is refused, with its section and key."""
    path = write(f"\n{key} = {good}", f"\n{key} = {bad}")
    sections = [
        name for name, kind in config.SECTIONS.items() if key in {f.name for f in fields(kind)}
    ]

    message = refused(path)

    assert re.fullmatch(rf"config\.toml: \[({'|'.join(sections)})\] {key}: \S.*[^.]", message)


def test_every_setting_has_a_bad_value() -> None:
    """The examples above have an invalid value for each setting."""
    keys = {key.name for kind in config.SECTIONS.values() for key in fields(kind)}

    assert keys == {key for key, _, _ in BAD}


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("PORT", "http"),
        ("PORT", ""),
        ("PORT", "5 000"),
        ("PORT", "٣"),
        ("PORT", "1" * 5000),
        ("WEB_CONCURRENCY", "2.5"),
        ("WEB_CONCURRENCY", "0"),
        ("LOG_LEVEL", "loud"),
        ("HOST", ""),
        ("DATABASE_URL", "sqlite:///movies.db"),
        ("CATALOGUE_SERVER_REQUEST_TIMEOUT", "soon"),
        ("CATALOGUE_DATABASE_MAX_OPEN", "0"),
    ],
)
def test_a_bad_variable_is_refused_by_its_name(variable: str, value: str) -> None:
    """For an invalid value in the environment, the message names the variable, not the file."""
    message = refused(DEFAULTS, **{variable: value})

    assert message.startswith(f"{variable}: ")


def test_the_operations_port_is_another_one() -> None:
    """Whatever the hosts are: gunicorn tells its sockets apart by the port."""
    ports = {"PORT": "9100", "CATALOGUE_OPERATIONS_PORT": "9100"}

    with pytest.raises(
        OperatorError, match=r"^\[operations\] port: must differ from \[server\] port$"
    ):
        config.load(DEFAULTS, ports)


def test_a_file_that_cannot_be_read_is_refused(write: Write, tmp_path: Path) -> None:
    """Invalid TOML with its line, another encoding, a folder, or no file."""
    path = write("port = 8000", "port = = 8000")
    assert re.match(r"config\.toml: not TOML: .*line \d+", refused(path))

    path.write_bytes('environment = "Amélie"'.encode("latin-1"))
    assert refused(path).startswith("config.toml: not TOML: ")

    path.unlink()
    assert refused(path) == "config.toml: cannot be read: No such file or directory"
    assert refused(tmp_path).endswith(": cannot be read: Is a directory")


@pytest.mark.parametrize(
    "url",
    [
        "postgres://u:p@h:5432/d?sslmode=require",  # as Heroku writes it
        "postgresql://u:p@h:5432/d?sslmode=require",
        "postgresql:///d?host=/run/postgresql",
        "postgresql://u@[::1]:5432/d",
        "postgresql://u@%2Frun%2Fpostgresql/d",
        "postgresql://u@h1,h2/d",
        "postgresql://u@h1:5432,h2:5433/d",
    ],
)
def test_every_form_of_url_is_accepted(url: str) -> None:
    """All forms that libpq documents are accepted."""
    assert config.load(DEFAULTS, {"DATABASE_URL": url}).database.url == url


def test_the_password_is_in_no_repr() -> None:
    """Settings may be printed and logged, so their repr leaves out the URL and the token."""
    token = "0123456789abcdef"
    url = f"postgresql://u:{SECRET}@h/d"
    environ = {"DATABASE_URL": url, "CATALOGUE_OPERATIONS_TOKEN": token}
    loaded = config.load(
        DEFAULTS, {**environ, "CATALOGUE_LIMITS_REDIS_URL": f"redis://:{SECRET}@h"}
    )

    assert SECRET in loaded.database.url
    assert SECRET not in f"{loaded!r} {loaded} {loaded.database!r} {loaded.database}"
    assert token not in repr(loaded)


def test_the_password_is_in_no_message(write: Write) -> None:
    """Messages repeat neither a refused URL nor an invalid line of the file."""
    for scheme in ("mysql://", "", "https://"):
        message = refused(DEFAULTS, DATABASE_URL=f"{scheme}u:{SECRET}@h/d")
        assert message.startswith("DATABASE_URL: ")
        assert SECRET not in message
    assert SECRET not in refused(write('\nurl = ""', f'\nurl = "postgresql://u:{SECRET}@h/d'))


def test_settings_cannot_be_changed() -> None:
    """Loaded settings are frozen."""
    loaded = config.load(DEFAULTS, {})

    with pytest.raises(AttributeError):
        loaded.server.port = 1  # type: ignore[misc] # that it cannot be is what is tried


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", ()),
        (" , ", ()),
        ("*", ("*",)),
        (
            "https://a.example, http://localhost:3000,http://[::1]:808",
            ("https://a.example", "http://localhost:3000", "http://[::1]:808"),
        ),
        ("chrome-extension://abcdef", ("chrome-extension://abcdef",)),
    ],
)
def test_a_list_comes_from_the_environment_with_commas(
    value: str, expected: tuple[str, ...]
) -> None:
    """Spaces are ignored, and an empty value is an empty list."""
    loaded = config.load(DEFAULTS, {"CATALOGUE_SERVER_CORS_ORIGINS": value})

    assert loaded.server.cors_origins == expected


@pytest.mark.parametrize(
    "origin",
    [
        "https://a.example/",
        "https://A.example",
        "https://a.example:443",
        "http://a.example:80",
        "https://*.example",
        "a.example",
        "null",
        "https://ä.example",
        "https://a.example https://b.example",
    ],
)
def test_an_origin_that_no_browser_sends_is_refused(write: Write, origin: str) -> None:
    """It would never match, and no message would say why."""
    path = write("cors_origins = []", f'cors_origins = ["{origin}"]')

    assert refused(path).startswith(
        f"config.toml: [server] cors_origins: {origin!r} is not an origin as browsers send it: scheme://"
    )


@pytest.mark.parametrize("value", ["1", "{}", "[1]", "[[]]"])
def test_origins_have_to_be_a_list(write: Write, value: str) -> None:
    """A list of strings is expected."""
    path = write("cors_origins = []", f"cors_origins = {value}")

    assert refused(path).endswith("must be a list of origins, like https://example.com")
