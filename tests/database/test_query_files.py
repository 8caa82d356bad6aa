"""Tests the query files: mistakes in their text, and what aiosql loads from them."""

import re
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT

from service.database import query_files
from service.database.embedded import find_programs
from service.database.query import Expected, Query
from service.errors import OperatorError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder for query files; its path has no word of the files."""
    folder = tmp_path / "sql"
    folder.mkdir()
    return folder


def expects(*parameters: str, writes: bool = True) -> Expected:
    """Expect these parameters, and no columns."""
    return Expected({}, [dict.fromkeys(parameters)], "a test", writes)


def load(folder: Path, text: str, **expected: Expected) -> dict[str, Query]:
    """Load a file a.sql with this text; the service expects `name=Expected(...)`."""
    (folder / "a.sql").write_bytes(text.encode())
    return query_files.load(folder, expected)


def refused(folder: Path, text: str, **expected: Expected) -> str:
    """Load this text, which must be refused; return the reason, with paths in the folder."""
    with pytest.raises(OperatorError) as caught:
        load(folder, text, **expected)
    return str(caught.value).replace(f"{folder.name}/", "")


def sql(folder: Path, text: str) -> str:
    """Load a file with one query and return the SQL for the driver, without our comment."""
    (query,) = load(folder, text).values()
    return query.sql.replace(f" /* {query.name} sql/a.sql:{query.line} */", "", 1)


# What is loaded.


def test_each_query_has_its_name_parameters_and_place(folder: Path) -> None:
    """Of all files with names that end in .sql, and that are not hidden."""
    (folder / "b.sql").write_text("-- name: get_b()\nselect 1;\n", "utf-8-sig")  # as on Windows
    (folder / "a.sql.orig").write_text("-- name: get_a()\nselect 2;\n")
    (folder / ".#a.sql").symlink_to("dba@laptop.1234")  # a lock file of Emacs
    (folder / "._a.sql").write_bytes(b"\x00\x05\x16\x07")  # a metadata file of macOS

    text = "-- About a.\r\n\r\n-- name: get_a(x, y)\r\n-- Gets a.\r\nselect :x,\r\n  :y;\r\n"
    loaded = load(folder, f"{text}\n/* Of\n   b. */\n--name:drop_a( x )\nselect :x;")

    assert [(q.name, q.parameters, q.path.name, q.line, q.sql_line) for q in loaded.values()] == [
        ("get_a", ("x", "y"), "a.sql", 3, 5),
        ("drop_a", ("x",), "a.sql", 10, 11),
        ("get_b", (), "b.sql", 1, 2),
    ]


def test_a_statement_has_its_query_and_place(folder: Path) -> None:
    """PostgreSQL shows them with the statement: in front, and behind the first word."""
    (query,) = load(folder, "\n-- name: get_a()\nwith a as (select 1)\nselect 1;\n").values()

    assert query.build_preamble(1).startswith("/* get_a sql/a.sql:2 */;")
    assert query.sql == "with /* get_a sql/a.sql:2 */ a as (select 1)\nselect 1"


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        *((f"select 1{end}", "select 1") for end in (";", "\n;\n", " ;\n\n", "")),
        ("-- why\n/* it's\n :y; */\nselect\n-- :y; it's\n  :x", "select\n\n  %(x)s"),
        ("select :x\n/* a\n b */\n;", "select %(x)s"),
        ("select :x % 5", "select %(x)s %% 5"),
        ("select 100%:x", "select 100%%%(x)s"),
        ("select :x like '%s', '%(x)s'", "select %(x)s like '%%s', '%%(x)s'"),
        ("select :x::text", "select %(x)s::text"),
        ("select :x :: text, cast(:x as text)", "select %(x)s :: text, cast(%(x)s as text)"),
        ("select :x || ':x', 'it''s :x'", "select %(x)s || ':x', 'it''s :x'"),
        ('select :x as ":x", "a"":x"', 'select %(x)s as ":x", "a"":x"'),
        ("select :x, '-- :x', '/* :x */', ';'", "select %(x)s, '-- :x', '/* :x */', ';'"),
        ("select :x, $$;$$, $a$\n$a$", "select %(x)s, $$;$$, $a$\n$a$"),
        ("select :x, E'\\n', e':y', E'a\\\\'", "select %(x)s, E'\\n', e':y', E'a\\\\'"),
        ("select :x, 'a\n\n  b'", "select %(x)s, 'a\n\n  b'"),
        ("select :x -- it's 1 %, a::b; :y\n+ 1;  -- done ", "select %(x)s\n+ 1"),
        ("select 1/* :y\n * isn't; */+/* b /* c */ d */:x", "select 1\n+ %(x)s"),
        ("/*\n-- name: get_b()\nselect 2;\n*/\nselect :x", "select %(x)s"),
        ("select :x, '\n-- none\n', '/* '", "select %(x)s, '\n-- none\n', '/* '"),
        ("/*+ SeqScan(m) */ select /*+ :x */ :x", "/*+ SeqScan(m) */ select /*+ :x */ %(x)s"),
        ("select (:x)[1:2], a[1: 2], a[:2], a[:]", "select (%(x)s)[1:2], a[1: 2], a[:2], a[:]"),
        ("select f(a := :x)[1: n]", "select f(a := %(x)s)[1: n]"),
        ("select :x, $$ :x % /* */ $$, $a$'$a$", "select %(x)s, $$ :x %% /* */ $$, $a$'$a$"),
        ("select :x, E'it\\'s :x', E'\\\\'", "select %(x)s, E'it\\'s :x', E'\\\\'"),
        ("select\f:x,\v'a \x85\u2028\n\nb'", "select %(x)s, 'a \x85\u2028\n\nb'"),
        ("(select :x)", "(select %(x)s)"),
    ],
)
def test_only_parameters_and_percent_signs_are_replaced(folder: Path, text: str, sent: str) -> None:
    """Comments and the last semicolon are left out; all else is sent as written."""
    parameters = "x" if ":x" in text else ""

    assert sql(folder, f"-- name: get_a({parameters})\n{text}\n").strip() == sent


def test_a_query_has_its_settings(folder: Path) -> None:
    """Each `-- set:` line is sent before the statement, in one message, as `set local`."""
    text = (
        "-- name: get_a()\n-- set: work_mem = 8MB\n-- It sorts much.\n--set:jit='off'\n"
        "-- set: search_path = 'public, pg_catalog'\n-- set: a.b = '';\n"
        "-- set: statement_timeout = 2min\nselect 1;\n"
    )

    (query,) = load(folder, text).values()

    assert query.build_preamble(1.5) == (
        "/* get_a sql/a.sql:1 */; set local timezone = 'UTC'; set local jit = off; "
        "set local work_mem = '8MB'; "
        "set local jit = 'off'; set local search_path = 'public, pg_catalog'; set local a.b = ''; "
        "set local statement_timeout = 1500; "
    )
    assert query.timeout == 120


@pytest.mark.parametrize(
    ("value", "seconds"), [("0", 0), ("1500", 1.5), ("1500ms", 1.5), ("3s", 3), ("1min", 60)]
)
def test_a_query_has_its_own_timeout(folder: Path, value: str, seconds: float) -> None:
    """The timeout may be written as in PostgreSQL."""
    text = f"-- name: get_a()\n-- set: statement_timeout = {value}\nselect 1;\n"

    assert load(folder, text)["get_a"].timeout == seconds


@pytest.mark.parametrize(
    "line",
    [
        *("-- see get_b(x)", "-- get_b(x)", "-- the name: of a movie", "-- unnamed (so far)"),
        *("-- \\set ids '{1}'", "-- nothing: 1", "-- set by the trigger"),
        *("-- Names are compared, not (b).", "-- The name of get_b(x)", "-- name of the movie"),
        *("-- Name (of a movie)", "-- Names, as get_b returns them", "-- Names: title, year"),
        *("-- Same as get_b(x)", "-- Same years (b)", "-- Name and year of get_b(x)"),
        *("-- -- name: get_b(x)", "/* name */", "/* -- name: get_b(x) */", "-- name & year"),
    ],
)
def test_an_ordinary_comment_is_accepted(folder: Path, line: str) -> None:
    """Comments may mention names, queries and settings."""
    assert sql(folder, f"{line}\n-- name: get_a()\n{line}\nselect\n{line}\n1;\n") == "select\n\n1"


# What is refused.

NAME = "expected a line `-- name: verb_noun(parameter, ...)`"
BEFORE_NAME = f"{NAME} before this SQL"
SET = "expected a line like `-- set: work_mem = 8MB` between the name and the SQL"
OPEN = "unterminated quote or comment"
READ_ONLY = (
    "a.sql:2: get_a must only read: expected a line `-- set: transaction_read_only = on`"
    " below its name"
)
GET_A = "-- name: get_a()\n"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        # The file.
        (f"-- A file.\nselect 0;\n{GET_A}select 1;\n", f"2: {BEFORE_NAME}"),
        *((text, "1: no query: expected a line") for text in ("", "\n\n", "-- Only a comment.\n")),
        ("select 1;\n", f"1: {BEFORE_NAME}"),
        (f"{GET_A}select 1;\n\n{GET_A}select 2;\n", "4: get_a is already in a.sql:1"),
        (f"{GET_A}select 1\nfrom movies \0 where false;\n", "3: a NUL character: remove it"),
        # A name line. See also `MISSPELT`.
        (f"{GET_A}select 1; -- name: get_b()\nselect 2;\n", f"2: {NAME}"),
        (f"{GET_A}select 1\n;\n\nselect 2;\n", f"5: {BEFORE_NAME}: a semicolon ends get_a"),
        *(
            (
                f"{GET_A}-- A.\n{start};\n\nselect 1;\n",
                "3: expected one statement, with settings as lines",
            )
            for start in ("begin", "SET work_mem = '8MB'", "start transaction")
        ),
        (f"{GET_A}select 1; select 2;\n", f"2: {BEFORE_NAME}"),
        (f"{GET_A}select 1;\n-- name: get_b()\n/* A\n*/\n ;\n", "3: empty sql for: get_b"),
        # A setting.
        *(
            (f"{GET_A}-- {line}\nselect 1;\n", f"2: {SET}")
            for line in (
                *("set: work_mem", "set: work_mem 8MB", "set: a = 'b", "set: a = b; c"),
                *("sett: jit = on", "set local jit = on;", "Set: jit = on"),
                "set: tIMEZONE = UTC",  # for PostgreSQL, it is timezone
            )
        ),
        (f"{GET_A}select 1\n-- set: jit = off\n;\n", f"3: {SET}"),
        (f"{GET_A}select 1;\n-- set: jit = off\n-- name: get_b()\nselect 1;\n", f"3: {SET}"),
        # Responses would change, writes be lost, or protections be missing.
        *(
            (
                f"{GET_A}-- set: {name} = off\nselect 1;\n",
                f"2: {name} cannot be set here: the service relies on it",
            )
            for name in (
                *("timezone", "role", "catalogue.max_affected", "synchronous_commit"),
                "client_min_messages",
            )
        ),
        (
            f"{GET_A}-- set: statement_timeout = soon\nselect 1;\n",
            "2: expected a time like 500ms, 5s or 1min",
        ),
        # A parameter.
        (
            f"{GET_A}select 1;\n\n-- name: get_b(x)\nselect :x\nwhere :titel;\n",
            "4: undeclared parameter name in query get_b: titel",
        ),
        *(
            (
                f"\n-- name: get_a(x)\nselect {quoted};\n",
                "2: unused declared parameter in query get_a: ['x']",
            )
            for quoted in ("1", "':x'", '":x"', "'it''s :x'", "'%(x)s'", "1\n-- :x\n")
        ),
        # A quote or a comment that would take the next query with it, or has no end.
        *(
            (f"{GET_A}select\n  {piece};\n\n-- name: get_b()\nselect 'b';\n", f"3: {OPEN}")
            for piece in ("'a", '"a', "1 /* a", "1 /* a /* b */", "$$a", "$a$ $$", "E'\\'")
        ),
        (f"{GET_A}select a[1:n];\n", "1: undeclared parameter name in query get_a: n"),
    ],
)
def test_a_mistake_is_refused_at_its_line(folder: Path, text: str, reason: str) -> None:
    """Text that would be lost, changed or misread is refused with file and line."""
    assert refused(folder, text).startswith(f"a.sql:{reason}")


# A comment line that is no name anywhere; the query that it names would become part of another.
MISSPELT = [
    # The word.
    *("-- nmae: get_b(x)", "-- naem: get_b(x)", "-- anme: get_b(x)", "-- nam: get_b(x)"),
    *("-- nme: get_b(x)", "-- namee: get_b(x)", "-- nname: get_b(x)", "-- names: get_b(x)"),
    *("-- mame: get_b(x)", "-- Name: get_b(x)", "-- NAME: get_b(x)", "-- n ame: get_b(x)"),
    *("-- n\u0430me: get_b(x)", '-- "name": get_b(x)', "-- @name get_b(x)", "-- :name get_b(x)"),
    # The colon.
    *("-- name get_b(x)", "-- Name get_b(x)", "--name get_b(x)", "-- name get_b", "-- nmae get_b"),
    *("-- name; get_b(x)", "-- name\uff1a get_b(x)", "-- name\uff1aget_b(x)", "-- name:"),
    *("-- name = get_b(x)", "-- name - get_b(x)", "-- name -> get_b(x)", "-- name, get_b(x)"),
    *("-- name. get_b(x)", "-- name:: get_b(x)", "--name;get_b(x)", "-- name\xa0get_b(x)"),
    # The name of the query, and its parameters.
    *("-- name: get_b", "-- name: get_b x", "-- name: Get_B(x)", "-- name: get-b(x)"),
    *("-- nmae: get-b(x)", '-- name: "get_b"(x)', "-- name: 2b(x)", "-- name :get_b (x)"),
    *("-- name: get_b(:x)", "-- nmae: get_b(:x)", "-- name: get_b(x", "-- name: get_b x)"),
    *("-- name: get_b[x]", "-- name: get_b(x y)", "-- name: get_b(x; y)", "-- name: get_b(x,)"),
    *("-- name: get_b(x);", "-- name: get_b(x)!", "-- name: get_b(x) and more"),
    # The comment.
    *("  -- name: get_b(x)", "\t-- nmae: get_b(x)", "--- name: get_b(x)", "---name get_b(x)"),
    *("--\xa0nmae: get_b(x)", "/* name: get_b(x) */", "/* name get_b */", "/*nmae:get_b(x)*/"),
    *("/** name: get_b(x) **/", "\u200b-- name: get_b(x)"),
]
# No comment, so that PostgreSQL would refuse it.
MISSING = [
    *("- name: get_b(x)", "- - name: get_b(x)", "name: get_b(x)", "name:get_b(x)", "name: get_b x"),
    *("name; get_b(x)", "# name: get_b(x)", "// name: get_b(x)", "\u2014 name: get_b(x)"),
]
BEFORE_SQL = {
    "at the start": ("", "\nselect 2;\n-- name: get_c()\nselect 3;\n"),
    "after a query": (f"{GET_A}select 1;\n", "\nselect 2;\n"),
    "after a comment": (
        f"{GET_A}select 1;\n-- About b.\n-- Names are as get_a has them.\n",
        "\n-- It gets b.\nselect 2;\n",
    ),
}
OTHERS = {
    "after a query without a semicolon": (f"{GET_A}select 1\n", "\nselect 2;\n"),
    "at the end": (f"{GET_A}select 1;\n\n", ""),
}


@pytest.mark.parametrize("place", [*BEFORE_SQL, *OTHERS])
def test_a_misspelt_name_is_refused_at_its_line(folder: Path, place: str) -> None:
    """The message has the form that is expected."""
    before, after = (BEFORE_SQL | OTHERS)[place]
    lines = [*MISSPELT, *(MISSING if place in BEFORE_SQL else ())]

    reasons = {line: refused(folder, f"{before}{line}{after}") for line in lines}

    start = f"a.sql:{before.count(chr(10)) + 1}: {NAME}"
    assert {line: reason for line, reason in reasons.items() if not reason.startswith(start)} == {}


def test_a_name_in_two_files_is_refused(folder: Path) -> None:
    """Names are unique over all files; the message names both places."""
    (folder / "b.sql").write_text("\n\n-- name: get_a()\nselect 2;\n")

    assert refused(folder, "--\n-- name: get_a()\nselect 1;") == (
        "b.sql:3: get_a is already in a.sql:2"
    )


def test_a_file_that_cannot_be_read_is_refused(folder: Path) -> None:
    """A file in another encoding (with its line), a folder with the name of a file, or none."""
    (folder / "b.sql").write_bytes("-- name: get_b()\nselect 'Amélie';\n".encode("latin-1"))
    assert refused(folder, "-- name: get_a()\nselect 1;").startswith("b.sql:2: not UTF-8")

    (folder / "b.sql").unlink()
    (folder / "b.sql").mkdir()
    assert refused(folder, "-- name: get_a()\nselect 1;").startswith("b.sql:1: cannot be read")
    with pytest.raises(OperatorError, match=r"nowhere: cannot be read: No such file"):
        query_files.load(folder / "nowhere", {})


# What the service expects.


@pytest.mark.parametrize(
    ("text", "expected", "reason"),
    [
        ("-- name: drop_all(x)\nselect :x;", expects("ids", "x"), None),
        (
            "\n-- name: get_a(id, x)\nselect :id, :x;",
            expects("ids", "x"),
            "a.sql:2: expected get_a(ids, x), found (id, x)",
        ),
        *(
            (f"\n-- name: get_a()\n{line}select 1;", expects(writes=False), READ_ONLY)
            for line in ("", "-- set: transaction_read_only = off\n")
        ),
        (
            "-- name: get_a()\n--\n-- set: statement_timeout = 0s\nselect 1;",
            expects(),
            "a.sql:1: get_a must have a time limit: requests wait for it",
        ),
    ],
)
def test_other_than_the_service_expects_is_refused(
    folder: Path, text: str, expected: Expected, reason: str | None
) -> None:
    """The message has the first line of the query that the service needs."""
    missing = f"{folder}: no query `-- name: get_a(ids, x)`, which the service needs"

    assert refused(folder, text, get_a=expected) == (reason or missing)


def test_parameters_are_expected_in_any_order(folder: Path) -> None:
    """They are passed by name. A query of a command may run without a time limit."""
    text = "-- name: get_a(id, x)\n-- set: statement_timeout = 0\nselect :id, :x;"

    assert load(folder, text, get_a=expects("x", "id")._replace(by_command=True))


# psql.


def test_psql_runs_every_query_with_its_example(database: str) -> None:
    """The lines with an example below its name are enough; what it changes is rolled back."""
    script = []
    queries = query_files.load(ROOT / "queries", {}).values()
    texts = {query.path: query.path.read_text("utf-8") for query in queries}
    names = set(re.findall(r"\\set (\w+)", "".join(texts.values())))
    forget = [f"\\unset {name}" for name in sorted(names)]  # what the query before has set
    for query in queries:
        text = texts[query.path].split("\n")[query.line :]
        end = next((n for n, line in enumerate(text) if line.startswith("-- name:")), len(text))
        lines = [line.removeprefix("-- ") if "-- \\set" in line else line for line in text[:end]]
        script.append("\n".join([*forget, "begin;", *lines, "rollback;"]))

    done = subprocess.run(
        [find_programs() / "psql", "--no-psqlrc", "--set=ON_ERROR_STOP=1", "-d", database],
        input="\n".join(script),
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
