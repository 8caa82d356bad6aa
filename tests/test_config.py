"""Settings: config.toml, overridden by the environment; each mistake is one clear line."""

import json
import re
import tomllib
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path

import pytest
from conftest import ROOT

from service import config
from service.errors import OperatorError

DEFAULTS = ROOT / "config.toml"
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


def list_mistakes(path: Path, **environ: str) -> list[str]:
    """Load settings that must be refused, and return the lines of the message."""
    with pytest.raises(OperatorError) as caught:
        config.load(path, environ)
    return str(caught.value).replace(f"{path}:", "config.toml:").split("\n")


def refused(path: Path, **environ: str) -> str:
    """Load settings with one mistake, and return its line."""
    (line,) = list_mistakes(path, **environ)
    return line


def test_config_toml_shows_every_setting_with_its_default(tmp_path: Path) -> None:
    """The defaults are in the code: an empty file means the same as the project's file."""
    empty = tmp_path / "config.toml"
    empty.touch()
    shown = tomllib.loads(DEFAULTS.read_text("utf-8"))

    loaded, defaults = (asdict(config.load(path, {})) for path in (DEFAULTS, empty))

    # JSON makes lists of tuples, as in TOML.
    assert json.loads(json.dumps({name: defaults[name] for name in config.SECTIONS})) == shown
    assert loaded | {"root": tmp_path, "sources": {}} == defaults


def test_the_platform_names_are_at_the_top_of_the_file() -> None:
    """config.toml lists every variable with a special name."""
    head = DEFAULTS.read_text("utf-8").split("\n\n", 1)[0]

    assert [name for name in config.PLATFORM_NAMES if name not in head.split()] == []


@pytest.mark.parametrize(
    ("section", "key"),
    [(section, key.name) for section, kind in config.SECTIONS.items() for key in fields(kind)],
)
def test_every_setting_has_a_variable(section: str, key: str) -> None:
    """CATALOGUE_<SECTION>_<KEY> overrides the file, for every setting."""
    values = {
        "url": "postgres://u@h/d",
        "request_timeout": "70",
        "statement_timeout": "4",
        "require_if_match": "true",
        "require_tls": "true",
        "level": "error",
        "format": "json",
        "cors_origins": "https://a.example,*",
        "trusted_proxies": "10.0.0.7,fd00::/8,unix",
        "token": "0123456789abcdef",
        "redis_url": "redis://:p@h/0",
        "anonymous": "read",
        "replica_urls": "postgres://u@h/d,postgresql://u:p@h:1/d",
    }
    value = values.get(key, "7")

    loaded = config.load(DEFAULTS, {f"CATALOGUE_{section}_{key}".upper(): value})

    taken = getattr(getattr(loaded, section), key)
    shown = ",".join(taken) if isinstance(taken, tuple) else str(taken)
    assert shown.removesuffix(".0").lower() == value
    changed, plain = getattr(loaded, section), getattr(config.load(DEFAULTS, {}), section)
    assert asdict(changed) | {key: None} == asdict(plain) | {key: None}


def test_platform_variables_are_taken() -> None:
    """Those that platforms set override the file; one that is only for this service wins."""
    values = {"PORT": "5000", "WEB_CONCURRENCY": "4", "DATABASE_URL": "postgres://u@h/d"}
    texts = dict.fromkeys(config.PLATFORM_NAMES, "debug") | values
    for variable, name in config.PLATFORM_NAMES.items():
        section, _, key = name.partition(".")
        own = f"CATALOGUE_{section}_{key}".upper()
        loaded = config.load(DEFAULTS, {variable: texts[variable]})
        assert str(getattr(getattr(loaded, section), key)) == texts[variable]
        assert config.load(DEFAULTS, {variable: "1", own: texts[variable]}) == loaded


def test_other_variables_are_ignored() -> None:
    """Other variables, and the place of config.toml, have no effect; a port is no secret."""
    environ = {"PATH": "/bin", "CATALOGUE_CONFIG": "elsewhere.toml", "PORT_FILE": "/nowhere"}

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
        (
            *("[changes]\n", "[change]\n"),
            "[change] keep_days: unknown setting; did you mean [changes] keep_days?",
        ),
        # Removed settings are not said to be others.
        ("max_idle = 5", "connect_timeout = 5", "[database] connect_timeout: unknown setting"),
        ("[service]", "port = 1\n[service]", "port: unknown setting"),
        ("[service]", "[servic]\n[service]", "servic: unknown setting"),
        ("[changes]\n", "[[changes]]\n", "changes: unknown setting"),
        ("port = 8000", "port = 80.5", "[server] port: must be a whole number"),
        (
            *("port = 8000", "port = 65536"),
            "[server] port: must be greater than or equal to 0 and less than or equal to 65535",
        ),
    ],
)
def test_a_message_names_the_key_and_what_is_expected(
    write: Write, old: str, new: str, message: str
) -> None:
    """An operator can correct the file from the message alone."""
    assert refused(write(old, new)) == f"config.toml: {message}"


def test_all_mistakes_are_reported_at_once(write: Write) -> None:
    """Of the file and of the environment, with every wrong text of a list."""
    path = write("[server]\n", '[server]\nprot = 1\ncors_origins = ["a", "b"]\n')
    text = path.read_text("utf-8").replace("\ncors_origins = []", "").replace("= 4000", "= -1")
    path.write_text(text, "utf-8")

    lines = list_mistakes(path, PORT="http", CATALOGUE_LOG_LEVLE="info", LOG_LEVEL="loud")

    assert [re.sub(" is not an origin.*| and less.*", "", line) for line in lines] == [
        "config.toml: [server] cors_origins: 'a'",
        "config.toml: [server] cors_origins: 'b'",
        "config.toml: [server] max_connections: must be greater than or equal to 1",
        "config.toml: [server] prot: unknown setting; did you mean [server] port?",
        "CATALOGUE_LOG_LEVLE: unknown setting; did you mean CATALOGUE_LOG_LEVEL?",
        "LOG_LEVEL: must be one of: debug, info, warning, error",
        "PORT: must be a whole number",
    ]


# A setting with its value in config.toml, and values that are wrong.
BAD = [
    ("environment", '"development"', "5", '""'),
    ("commit", '""', "5", f'"{"a" * 101}"'),
    ("host", '"127.0.0.1"\nport = 8000', '""\nport = 8000', '" "\nport = 8000'),
    ("host", '"127.0.0.1"\nport = 0', '""\nport = 0'),
    ("port", "8000", "-1", "65536", "80.5", "true", "[8000]"),
    ("port", "0", "65536"),
    ("workers", "1", "0", "513"),
    ("max_connections", "4000", "0"),
    ("max_streams", "2", "-1", "1.5"),
    ("keepalive_timeout", "75", "-1", "75000", "true", '"soon"', "inf", "nan"),
    ("request_timeout", "10", "0", "10000"),
    ("body_timeout", "5", "0", "5000"),
    ("drain_delay", "0", "-0.5", "1000"),
    ("shutdown_timeout", "10", "0", "10000"),
    ("require_if_match", "false", "2", '"yes"'),
    ("hsts", "0", "-1", "true"),
    ("cache_seconds", "0", "-1", "0.5", "86401"),
    ("cors_origins", "[]", "1", "{}", "[1]", "[[]]"),
    # No browser sends these, so they would never match.
    ("cors_origins", "[]", '["https://a.example/"]', '["https://A.example"]', '["a.example"]'),
    ("cors_origins", "[]", '["https://a.example:443"]', '["http://a.example:80"]', '["null"]'),
    ("cors_origins", "[]", '["https://*.example"]', '["https://ä.example"]'),
    ("cors_origins", "[]", '["https://a.example https://b.example"]'),
    ("trusted_proxies", "[]", '"10.0.0.300"', "[10]", '["10.0.0.1/8"]', '["localhost"]'),
    ("trusted_proxies", "[]", '["::ffff:10.0.0.7"]'),
    ("url", '""', '"mysql://u@h/d"', '"h/d"', "1"),
    ("replica_urls", "[]", '["mysql://u@h/d"]', '"h/d"', '["postgresql://u@h,g/d"]'),
    ("max_replica_lag", "1", "0", "1000"),
    ("require_tls", "false", '"yes"', "2", "[]"),
    ("max_open", "10", "0", "10001", "2.5", '"many"'),
    ("max_idle", "5", "-1"),
    ("max_idle_time", "30", "0", "30000"),
    ("acquire_timeout", "2", "0", "2000"),
    ("statement_timeout", "3", "0", "3000"),
    ("anonymous", '"write"', '"all"'),
    ("keep_days", "30", "-1", "3651"),
    ("rate", "0", "-1", "0.5"),
    ("burst", "100", "0"),
    ("redis_url", '""', '"localhost:6379"', '"http://h/0"', '"redis://h/abc"', '"redis://h/0#1"'),
    ("redis_url", '""', '"redis://:pa/ss@h"', '"redis://:12?ss=1@h/0"', '"redis://h:port/0"'),
    ("token", '""', '"fifteen-letters"', '"sixteen letters "', "1234567890123456"),
    ("level", '"info"', '"loud"', "1"),
    ("format", '"auto"', '"xml"', "1"),
    ("slow_statement", "0.5", "-1", "500"),
]


@pytest.mark.parametrize(
    ("key", "good", "bad"), [(key, good, bad) for key, good, *wrong in BAD for bad in wrong]
)
def test_a_bad_value_is_refused(write: Write, key: str, good: str, bad: str) -> None:
    """A value of a wrong type or out of range is refused, with its section and key."""
    path = write(f"\n{key} = {good}", f"\n{key} = {bad}")
    sections = [
        name for name, kind in config.SECTIONS.items() if key in {f.name for f in fields(kind)}
    ]

    message = refused(path)

    assert re.fullmatch(rf"config\.toml: \[({'|'.join(sections)})\] {key}: \S.*[^.]", message)


@pytest.mark.parametrize("value", ["http", "5 000", "2.5", "٣", "1" * 5000])
def test_a_number_in_the_environment_has_digits(value: str) -> None:
    """At most nine; the message names the variable, not the file."""
    assert refused(DEFAULTS, PORT=value) == "PORT: must be a whole number"


def test_every_setting_has_a_bad_value() -> None:
    """The examples above have an invalid value for each setting."""
    keys = {key.name for kind in config.SECTIONS.values() for key in fields(kind)}

    assert keys == {key for key, *_ in BAD}


@pytest.mark.parametrize(
    ("variable", "secret"),
    [
        ("DATABASE_URL", f"postgresql://u:{SECRET}@h/d"),
        ("CATALOGUE_DATABASE_URL", f"postgresql://u:{SECRET}@h/d"),
        ("CATALOGUE_DATABASE_REPLICA_URLS", "postgresql://u@h/d,postgresql://u@g/d"),
        ("CATALOGUE_LIMITS_REDIS_URL", f"redis://:{SECRET}@h:6379/0"),
        ("CATALOGUE_OPERATIONS_TOKEN", "0123456789abcdef"),
    ],
)
@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_a_secret_may_be_in_a_file(tmp_path: Path, variable: str, secret: str, end: str) -> None:
    """Its path is in ..._FILE; an editor adds the line end, which is no part of the secret."""
    path = tmp_path / "secret"
    path.write_bytes(f"{secret}{end}".encode())

    loaded = config.load(DEFAULTS, {f"{variable}_FILE": str(path)})

    assert loaded == config.load(DEFAULTS, {variable: secret})


def test_a_wrong_file_of_a_secret_is_refused_with_the_other_mistakes(tmp_path: Path) -> None:
    """Its path is named, but not what is in it; a secret may not come from two places."""
    wrong = tmp_path / "wrong"
    wrong.write_text(SECRET)
    missing = tmp_path / "missing"

    token = "16 or more letters, digits and -._~+/, as of openssl rand -hex 16, or empty"
    assert list_mistakes(
        DEFAULTS,
        PORT="http",
        DATABASE_URL=f"postgresql://u:{SECRET}@h/d",
        DATABASE_URL_FILE=str(missing),
        CATALOGUE_OPERATIONS_TOKEN_FILE=str(wrong),
        CATALOGUE_SERVER_PORT_FILE="/nowhere",
    ) == [
        f"CATALOGUE_OPERATIONS_TOKEN_FILE: must be {token}",
        "CATALOGUE_SERVER_PORT_FILE: unknown setting; did you mean CATALOGUE_SERVER_PORT?",
        "DATABASE_URL and DATABASE_URL_FILE are both set: expected one of them",
        f"DATABASE_URL_FILE: {missing}: cannot be read: No such file or directory",
        "PORT: must be a whole number",
    ]


def test_the_operations_port_is_another_one() -> None:
    """Unless the hosts are two addresses."""
    ports = {"PORT": "9100", "CATALOGUE_OPERATIONS_PORT": "9100"}

    for host in ("127.0.0.1", "0.0.0.0", "::"):  # noqa: S104 - refused
        with pytest.raises(
            OperatorError, match=r"^\[operations\] port: must differ from \[server\] port on this"
        ):
            config.load(DEFAULTS, {**ports, "HOST": host})
    assert config.load(DEFAULTS, {**ports, "HOST": "127.0.0.2"}).operations.port == 9100


@pytest.mark.parametrize("variable", sorted(config.VARIABLES))
def test_an_empty_variable_is_as_a_missing_one(variable: str) -> None:
    """Platforms and compose files set empty ones, or blanks."""
    for text in ("", " ", "\t\n"):
        loaded = config.load(DEFAULTS, {variable: text})

        assert loaded == (default := config.load(DEFAULTS, {}))
        assert loaded.sources == default.sources


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CATALOGUE_DATABASE_STATEMENT_TIMEOUT", "30"),
        ("CATALOGUE_DATABASE_ACQUIRE_TIMEOUT", "7.1"),
        ("CATALOGUE_SERVER_BODY_TIMEOUT", "10.5"),
        ("CATALOGUE_SERVER_REQUEST_TIMEOUT", "4.9"),
    ],
)
def test_timeouts_that_do_not_nest_are_refused(name: str, value: str) -> None:
    """A part of a request may not take longer than all of it; the message has the unit."""
    message = refused(DEFAULTS, **{name: value})

    assert re.search(r"is [\d.]+ seconds: expected at most \[server\] request_timeout, ", message)


def test_words_may_be_in_any_case() -> None:
    """LOG_LEVEL=INFO is how other services write it."""
    words = {"LOG_LEVEL": "DEBUG", "CATALOGUE_LOG_FORMAT": "Json"}
    words |= {"CATALOGUE_DATABASE_REQUIRE_TLS": "True"}
    in_lower_case = {name: word.lower() for name, word in words.items()}

    assert config.load(DEFAULTS, words) == config.load(DEFAULTS, in_lower_case)


def test_the_folders_are_next_to_the_config_as_it_was_named(tmp_path: Path) -> None:
    """A ConfigMap of Kubernetes makes config.toml a link to another folder."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "config.toml").touch()
    (tmp_path / "config.toml").symlink_to("data/config.toml")
    for name in ("queries", "migrations"):
        (tmp_path / name).mkdir()

    loaded = config.load(tmp_path / "config.toml", {})
    (tmp_path / "queries").rmdir()
    (tmp_path / "queries").symlink_to("nowhere")
    dangling = config.load(tmp_path / "config.toml", {})

    assert dangling.queries == tmp_path / "queries"  # which cannot be read, and that is said
    assert (loaded.queries, loaded.migrations) == (tmp_path / "queries", tmp_path / "migrations")


def test_a_folder_that_is_not_there_is_the_services_own(tmp_path: Path) -> None:
    """So config.toml may be elsewhere, and needs only what differs."""
    (tmp_path / "config.toml").touch()
    (tmp_path / "queries").mkdir()

    loaded = config.load(tmp_path / "config.toml", {})

    assert (loaded.queries, loaded.migrations) == (tmp_path / "queries", ROOT / "migrations")


def test_a_byte_order_mark_is_accepted_and_utf_16_named(tmp_path: Path) -> None:
    """In the settings, and in a file with a secret."""
    path, secret = tmp_path / "config.toml", tmp_path / "url"
    path.write_text('[log]\nlevel = "debug"\n', "utf-8-sig")
    secret.write_text("postgresql://u@h/d\n", "utf-8-sig")
    environ = {"DATABASE_URL_FILE": str(secret)}

    loaded = config.load(path, environ)

    assert (loaded.log.level, loaded.database.url) == ("debug", "postgresql://u@h/d")
    for encoding in ("utf-16", "utf-16-be", "utf-32", "utf-32-be"):
        secret.write_text("postgresql://u@h/d", encoding)
        assert list_mistakes(path, **environ) == [
            f"DATABASE_URL_FILE: {secret}: it is in UTF-16 or UTF-32: save it as UTF-8"
        ]
        path.write_text("[log]\n", encoding)
        assert "not TOML: it is in UTF-16 or UTF-32: save it as UTF-8" in refused(path)
        path.write_text("", "utf-8")


def test_a_file_that_cannot_be_read_is_refused(write: Write, tmp_path: Path) -> None:
    """Invalid TOML with its line, another encoding, a folder, or no file."""
    path = write("port = 8000", "port = = 8000")
    assert re.match(r"config\.toml: not TOML: .*line \d+", refused(path))

    path.write_bytes('environment = "Amélie"'.encode("latin-1"))
    assert refused(path).startswith("config.toml: not TOML: ")

    path.unlink()
    assert refused(path) == "config.toml: cannot be read: No such file or directory"
    assert refused(tmp_path).endswith(": cannot be read: Is a directory")


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


def test_a_list_comes_from_the_environment_with_commas() -> None:
    """Spaces are ignored, and an empty value is an empty list."""
    origins = ("https://a.example", "http://[::1]:808", "chrome-extension://abcdef")

    for value, expected in ((" , ", ()), (", ".join(origins), origins)):
        loaded = config.load(DEFAULTS, {"CATALOGUE_SERVER_CORS_ORIGINS": value})
        assert loaded.server.cors_origins == expected
