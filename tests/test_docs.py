"""Tests the documents: their commands print the shown output, and the named things exist."""

import ast
import asyncio
import importlib
import os
import re
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import Callable
from dataclasses import fields
from inspect import isfunction
from pathlib import Path

import pytest
from conftest import ROOT, Client, Start
from psycopg2.extensions import adapt
from support import Execute, add_client, read_token_function

from service import __version__, config
from service.app import EXPECTED, create_app
from service.changes.feed import PAGE_CHANGES
from service.changes.handlers import MAX_CHANGES, MAX_WAIT_S
from service.config import PLATFORM_NAMES, SECTIONS, Config
from service.database import query_files
from service.database.listing import EXACT_TOTAL
from service.database.statements import DEFAULTS
from service.movies import rules
from service.movies.movie import COLUMNS, OUTPUT_FORMS
from service.movies.parameters import PARAMETERS
from service.web import pages, query_strings
from service.web.problems import find_problems

DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "bench" / "README.md"]
)
WITH_CONSOLES = [ROOT / name for name in ("README.md", "docs/dbas.md", "docs/operators/run.md")]
CONTRACT = ROOT / "docs/clients/contract.md"
# The documents with commands for clients, in the order of a reader.
FOR_CLIENTS = [ROOT / "docs/clients" / name for name in ("quick-start.md", "guides.md")]
SETTINGS = {field.name for kind in SECTIONS.values() for field in fields(kind)}
# Folders at the start of paths in documents.
FOLDERS = "bench|clients|docs|migrations|ops|queries|samples|service|tests"
# The calls that log are found in the source, because tests do not reach each of them.
LOGGERS = {"log", "structlog.get_logger()"}
SOURCES = [*sorted((ROOT / "service").rglob("*.py")), ROOT / "gunicorn.conf.py"]


def name_document(path: Path) -> str:
    """Name a document in the report of the tests."""
    return str(path.relative_to(ROOT))


def read_current(path: Path) -> str:
    """Read what a document says of today: in CHANGELOG.md, released versions are history."""
    text = path.read_text()
    return "\n## ".join(text.split("\n## ")[:2]) if path.name == "CHANGELOG.md" else text


def mask(text: str) -> str:
    """Replace the parts that differ in each run."""
    text = re.sub(r'"\d{4}-\d\d-\d\dT[^"]*Z"', '"<time>"', text)
    text = re.sub(r'"id": \d+', '"id": <id>', text)
    text = re.sub(r'"etag": "\\"\d+-', r'"etag": "\"<id>-', text)
    text = re.sub(r'"request_id": "[^"]*"', '"request_id": "<id>"', text)
    text = re.sub(r"in \d+\.\d s(?: \([\d,]+ rows/s\))?", "in <time>", text)
    text = re.sub(r"^the queries of \S+", "the queries of <folder>", text, flags=re.MULTILINE)
    return re.sub(r"\d+ queries in \d+ files of \S+", "<number> queries", text)


def read_console(path: Path) -> list[tuple[str, str]]:
    """Return the commands of a document's console blocks, each with the output that it shows."""
    blocks = "".join(
        re.findall(r"^```console\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE)
    )
    steps = re.findall(r"^\$ (.*\n(?:> .*\n)*)((?:(?!\$ ).*\n)*)", blocks, re.MULTILINE)
    return [(re.sub(r"^> ", "", command, flags=re.MULTILINE), output) for command, output in steps]


def read_sections(path: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a document."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


async def run_console(
    paths: list[Path], client: Client, environment: dict[str, str], folder: Path, prelude: str = ""
) -> list[tuple[str, str]]:
    """Run all commands of the documents in one shell; return the wrong ones, and what they print.

    `prelude` are commands before the first one.
    """
    (folder / "samples").symlink_to(ROOT / "samples")
    address = str(client.make_url("")).rstrip("/")
    steps = [step for path in paths for step in read_console(path)]
    assert steps
    end = "\N{END OF TRANSMISSION}\n"  # of the output of a command
    commands = [command.replace("http://127.0.0.1:8000", address) for command, _ in steps]
    process = await asyncio.create_subprocess_exec(
        *("sh", "-c", prelude + "".join(f"{command}\nprintf '{end}'\n" for command in commands)),
        cwd=folder,
        env={
            **environment,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}",
            "PYTHONPATH": str(ROOT),
            "CATALOGUE_CONFIG": str(ROOT / "config.toml"),
        },
        stdout=PIPE,
        stderr=STDOUT,
    )
    printed, _ = await asyncio.wait_for(process.communicate(), 20 * len(steps))
    outputs = printed.decode().split(end)
    assert outputs.pop() == ""
    return [
        (command, output)
        for (command, expected), output in zip(steps, outputs, strict=True)
        if mask(output) != mask(expected)
    ]


@pytest.mark.parametrize("path", WITH_CONSOLES, ids=name_document)
async def test_commands_print_what_the_document_shows(
    client: Client, environment: dict[str, str], tmp_path: Path, path: Path
) -> None:
    """The catalogue is empty, and clients need no token."""
    assert await run_console([path], client, environment, tmp_path) == []


@pytest.mark.parametrize("anonymous", ["write", "none"])
async def test_commands_for_clients_print_what_the_documents_show(
    start: Start, execute: Execute, environment: dict[str, str], tmp_path: Path, anonymous: str
) -> None:
    """The catalogue has movies; with `none`, a function of the guides sends a token."""
    client = await start(access__anonymous=anonymous)
    environment["TOKEN"] = add_client(execute, "write")
    execute(
        "insert into movies (title, year, runtime, genres)"
        " select title, 2000 + n, 100, array['animation'] from generate_series(1, 9) as n,"
        " unnest(array['Moana', 'Brave', 'Cars']) as title"
    )

    prelude = read_token_function() if anonymous == "none" else ""
    wrong = await run_console(FOR_CLIENTS, client, environment, tmp_path, prelude)

    assert wrong == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_document)
def test_links_lead_somewhere(path: Path) -> None:
    """Links to files of this repository, and to their sections."""
    broken = []
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", read_current(path)):
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        if not file.exists() or (anchor and anchor not in read_sections(file)):
            broken.append(target)

    assert broken == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_document)
def test_files_that_are_named_exist(path: Path) -> None:
    """Paths in backticks, as in the code tour, and of `pytest`; `*` stands for any name."""
    text = read_current(path)
    paths = re.findall(rf"`((?:{FOLDERS})/[\w./*-]+)`", text)
    paths += " ".join(re.findall(r"`pytest\s+(tests/[^`]*)`", text)).split()

    assert [named for named in paths if not list(ROOT.glob(named.rstrip("/")))] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_document)
def test_settings_that_are_named_exist(path: Path) -> None:
    """`[section] key` and environment variables are settings."""
    keys = {(section, key.name) for section, kind in SECTIONS.items() for key in fields(kind)}
    text = read_current(path)
    named = set(re.findall(r"`\[(\w+)\] (\w+)", text))
    variables = set(re.findall(r"CATALOGUE_([A-Z_]+)", text)) - {"CONFIG"}

    assert named - keys == set()
    assert variables - {f"{section}_{key}".upper() for section, key in keys} == set()


def test_methods_in_the_code_tour_exist() -> None:
    """`Class.method`, in CONTRIBUTING.md and in the decisions."""
    modules = [path.read_text() for path in (ROOT / "service").rglob("*.py")]
    documents = (ROOT / "CONTRIBUTING.md", *(ROOT / "docs" / "decisions").glob("*.md"))
    text = "".join(path.read_text() for path in documents)
    found = [
        re.search(rf"^    (async )?(def )?{name}\b", module, re.MULTILINE)
        for kind, name in re.findall(r"`([A-Z]\w+)\.(\w+)`", text)
        for module in modules
        if re.search(rf"^class {kind}\b", module, re.MULTILINE)
    ]

    assert found
    assert all(found)


def test_lines_of_query_files_exist() -> None:
    """`get_movies queries/movies.sql:9` is the line with the name of that query."""
    loaded = query_files.load(ROOT / "queries", EXPECTED).values()
    lines = {(query.name, query.path.name, query.line) for query in loaded}
    named = {
        (name, file, int(line))
        for path in DOCUMENTS
        for name, file, line in re.findall(r"(\w+) queries/(\w+\.sql):(\d+)", read_current(path))
    }

    assert named
    assert named - lines == set()


def test_operators_read_the_defaults_of_the_timeouts() -> None:
    """The sentence on timeouts that nest has the values of config.toml."""
    defaults = config.load(ROOT / "config.toml", {})
    text = (ROOT / "docs/operators/run.md").read_text()
    (sentence,) = re.findall(r"Timeouts nest: (.*?) < the platform's", text, re.DOTALL)

    assert [float(value) for value in re.findall(r"\((\d+)", sentence)] == [
        defaults.server.body_timeout,
        defaults.database.acquire_timeout,
        defaults.database.statement_timeout,
        defaults.server.request_timeout,
    ]


def test_operators_read_of_every_variable_of_platforms() -> None:
    """The table of second names has all of them."""
    text = (ROOT / "docs/operators/deploy.md").read_text()

    assert [name for name in PLATFORM_NAMES if f"`{name}`" not in text] == []


def test_clients_read_of_every_path(settings: Callable[..., Config]) -> None:
    """docs/clients/contract.md names each one, except health checks and the reference itself."""
    others = re.compile("/v1/(docs|healthcheck|openapi)|/v1$|/$")
    resources = create_app(settings()).router.resources()
    paths = {path for each in resources if not others.match(path := each.canonical)}
    text = CONTRACT.read_text()

    assert paths
    named = r"`([A-Z]+ )?%s[?`]"
    assert [path for path in paths if not re.search(named % re.escape(path), text)] == []


def test_clients_read_of_every_problem() -> None:
    """docs/clients/problems.md has a section for every problem, with its status and title."""
    text = (ROOT / "docs/clients/problems.md").read_text()
    listed = re.findall(r"^## ([a-z-]+)\n\n\*\*(\d{3} [^.]+)\.\*\*", text, re.MULTILINE)

    assert sorted(listed) == sorted(
        (slug, f"{each.problem.status} {each.problem.title}")
        for slug, each in find_problems().items()
    )


def test_clients_read_of_every_parameter_of_lists() -> None:
    """The table of parameters has all of them."""
    text = CONTRACT.read_text()
    table = text.split("| parameter | meaning |")[1].split("\n\n")[0]
    first_cells = re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE)

    assert sorted(re.findall(r"`(\w+)`", "".join(first_cells))) == sorted(PARAMETERS)


def test_clients_read_the_limits_and_defaults_of_parameters() -> None:
    """Those of lists are in their table, those of the feed in its text."""
    text = " ".join(CONTRACT.read_text().split())
    table = text.split("| parameter | meaning |")[1].split("Any other parameter")[0]
    row = dict(re.findall(r"\| `(\w+)` \| (.*?) \|(?= \||$| *$)", table))

    assert f"up to {pages.MAX_PAGE_SIZE} ids" in row["id"]
    assert f"up to {rules.MAX_GENRES}," in row["genres"]
    assert f"up to {rules.MAX_GENRES}," in row["genres_any"]
    assert f"or up to {query_strings.MAX_RANGES} of these" in text
    page_size = f"0 to {pages.MAX_PAGE_SIZE}; {pages.DEFAULT_PAGE_SIZE} by default"
    assert row["page_size"].startswith(page_size)
    assert f"at most {EXACT_TOTAL:,} movies match" in row["page"]
    assert f"(`limit=`: 1 to {MAX_CHANGES:,}; {PAGE_CHANGES} by default)" in text
    assert f"(0 to {MAX_WAIT_S} seconds; 0 is the default)" in text


def test_clients_read_the_limits_of_the_rules() -> None:
    """The table of fields has the constants of `rules.py`."""
    text = CONTRACT.read_text()
    rule = dict(re.findall(r"^\| `(\w+)` \| yes \| (.*) \|$", text, re.MULTILINE))

    assert f"; 1 to {rules.MAX_TITLE_BYTES} bytes of UTF-8" in rule["title"]
    assert f"; {rules.MIN_YEAR} to the current year" in rule["year"]
    assert f"array of 1 to {rules.MAX_GENRES} different" in rule["genres"]
    assert f" at most {rules.MAX_GENRE_BYTES} bytes of UTF-8" in rule["genres"]


def test_clients_read_which_cells_of_a_csv_are_formulas() -> None:
    """A spreadsheet takes them for some; they are sent as they are."""
    text = CONTRACT.read_text()
    (listed,) = re.findall(r"\*\*A cell of a CSV may begin with (.*?)\*\*", text)
    encode = OUTPUT_FORMS["csv"].encode

    assert re.findall("`(.)`", listed) == [*"=+-@"]
    assert [encode({"title": each}) for each in "=+-@"] == [b"=\n", b"+\n", b"-\n", b"@\n"]


def test_dbas_read_what_is_sent(settings: Callable[..., Config]) -> None:
    """docs/dbas.md has the statement that the service sends."""
    section = (ROOT / "docs/dbas.md").read_text().split("## What the database sees")[1]
    shown = re.search(r"```sql\n(.*?)```", section, re.DOTALL)
    query = query_files.load(ROOT / "queries", EXPECTED)["get_movies"]

    preamble = query.build_preamble(settings().database.statement_timeout, DEFAULTS)
    sent = preamble + query.sql
    ids = adapt("{1}").getquoted().decode()  # as psycopg2 writes it

    assert shown
    assert shown[1].split() == (sent % {"ids": ids}).split()


def test_dbas_read_all_columns_of_a_movie() -> None:
    """Each example of docs/dbas.md that selects movies has the columns that the queries have."""
    lists = re.findall(r"m\.id, .*m\.updated_at", (ROOT / "docs/dbas.md").read_text())

    assert set(lists) == {", ".join(f"m.{name}" for name in COLUMNS)}


def test_the_index_lists_every_decision() -> None:
    """The index has the titles of the pages."""
    folder = ROOT / "docs" / "decisions"
    titles = {
        path.name: path.read_text().partition("\n")[0].partition(". ")[2]
        for path in folder.glob("[0-9]*.md")
    }
    listed = re.findall(
        r"^\| \[\d+\]\((.*?)\) \| (.*) \|$", (folder / "README.md").read_text(), re.MULTILINE
    )

    assert dict(listed) == titles


def test_no_two_releases_have_the_same_version() -> None:
    """With lines under Unreleased, it is `-dev` of a newer one; else that of the last release."""
    unreleased, *released = (ROOT / "CHANGELOG.md").read_text().split("\n## ")[1:]
    headings = [re.match(r"(\d+)\.(\d+)\.(\d+) - \d{4}-\d\d-\d\d\n", each) for each in released]
    releases = [tuple(map(int, heading.groups())) for heading in headings if heading]
    version = tuple(map(int, __version__.removesuffix("-dev").split(".")))
    has_changes = unreleased.strip() != "Unreleased"

    assert all(headings)
    assert releases == sorted(set(releases), reverse=True)
    assert __version__.endswith("-dev") == has_changes
    assert version > releases[0] if has_changes else version == releases[0]


LIBRARIES = {"aiohttp", "aiopg", "aiosql", "alembic", "gunicorn", "logging", "marshmallow"}
DOCUMENTED = {"_deserialize"}  # marshmallow: how to make fields of one's own
UNDOCUMENTED = {"RequestHandler"}  # of aiohttp, with all its members


def list_overrides() -> set[tuple[str, str]]:
    """Return module and name of each member of a library that a class of the service overrides."""
    found = set[tuple[str, str]]()
    for path in (ROOT / "service").rglob("[!_]*.py"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        module = importlib.import_module(name)
        classes = [each for each in vars(module).values() if isinstance(each, type)]
        for kind in (each for each in classes if each.__module__ == name):
            for base in kind.__mro__[1:]:
                if base.__module__.partition(".")[0] in LIBRARIES:
                    found |= {
                        (f"{path.relative_to(ROOT / 'service')}", member)
                        for member in vars(kind).keys() & vars(base).keys() - DOCUMENTED
                        if isfunction(vars(kind)[member])
                        and (member[0] == "_" or base.__name__ in UNDOCUMENTED)
                        and not member.startswith("__")
                    }
    return found


def test_what_overrides_a_library_is_listed() -> None:
    """In decision 6, each with a test that exists."""
    (path,) = (ROOT / "docs" / "decisions").glob("0006-*.md")
    rows = re.findall(
        r"^\| `([\w/.]+)` \| (.*`.*`.*) \| .* \| `(.*)` \|$", path.read_text(), re.MULTILINE
    )
    tests = "".join(each.read_text() for each in (ROOT / "tests").rglob("test_*.py"))

    assert len(rows) > 5
    for where, _, test in rows:
        assert (ROOT / "service" / where).exists() or (ROOT / where).exists()
        assert f"def {test}(" in tests or (ROOT / test).exists(), test
    listed = {(where, name) for where, what, _ in rows for name in re.findall(r"`(\w+)`", what)}
    assert list_overrides() <= listed


def find_events() -> set[str]:
    """Return the events that the source logs."""
    return {
        each.value
        for path in SOURCES
        for call in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.args
        if ast.unparse(call.func.value) in LOGGERS
        for each in ast.walk(call.args[0])
        if isinstance(each, ast.Constant) and isinstance(each.value, str)
    }


def test_every_event_is_documented() -> None:
    """Operators find what each line means, and no line that is not there."""
    table = (ROOT / "docs" / "logs.md").read_text("utf-8").partition("| event | level |")[2]
    table = table.partition("\n\n")[0]

    assert set(re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)) == find_events()
