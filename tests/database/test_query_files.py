"""Tests the query files: mistakes in their text, and text that must not be changed."""

from pathlib import Path

import pytest

from service.database import query_files
from service.database.queries import Expected, Query
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


def load(folder: Path, **expected: Expected) -> dict[str, Query]:
    """Load the folder; the service expects `name=Expected(...)`."""
    return query_files.load(folder, expected)


def refused(folder: Path, **expected: Expected) -> str:
    """Load files that must be refused, and return the reason, with paths relative to the folder."""
    with pytest.raises(OperatorError) as caught:
        load(folder, **expected)
    return str(caught.value).replace(f"{folder}/", "")


def refused_sql(folder: Path, text: str) -> str:
    """Load a file a.sql with this text, which must be refused, and return the reason."""
    (folder / "a.sql").write_text(text)
    return refused(folder)


def sql(folder: Path, text: str) -> str:
    """Load a file with one query and return the SQL for the driver, without our comment."""
    (folder / "a.sql").write_text(text)
    (query,) = load(folder).values()
    return query.sql.replace(f" /* {query.name} sql/a.sql:{query.line} */", "", 1)


def test_a_query_knows_its_name_its_parameters_and_its_place(folder: Path) -> None:
    """Each query of each file is found, with file and line."""
    (folder / "b.sql").write_text("-- name: get_b()\nselect 1;\n")
    (folder / "a.sql").write_text(
        "-- About a.\n\n-- name: get_a(x, y)\nselect :x, :y;\n\n-- name: drop_a()\nselect 2;\n"
    )

    loaded = load(folder)

    assert [(q.name, q.parameters, q.path.name, q.line) for q in loaded.values()] == [
        ("get_a", ("x", "y"), "a.sql", 3),
        ("drop_a", (), "a.sql", 6),
        ("get_b", (), "b.sql", 1),
    ]


def test_a_missing_query_is_refused(folder: Path) -> None:
    """The message has the query's first line, also if there is no folder."""
    (folder / "a.sql").write_text("-- name: drop_all(x)\nselect :x;\n")

    for place in (folder, folder / "nowhere"):
        with pytest.raises(OperatorError) as caught:
            load(place, get_b=expects("ids", "names"))
        assert str(caught.value) == (
            f"{place}: no query `-- name: get_b(ids, names)`, which the service needs"
        )


NAME = "expected a line `-- name: verb_noun(parameter, ...)`"
BEFORE_NAME = "expected `-- name: verb_noun(parameter, ...)` before any SQL"
SET = "expected `-- set: name = value`, like `-- set: work_mem = 8MB`"
TWO_STATEMENTS = "expected one statement per query; there is more after this semicolon"
UNUSED = "the parameter title is declared but not used"


@pytest.mark.parametrize(
    "line",
    [
        *("-- name: get_b", "-- name: get_b(x", "-- name: get_b(x) and more"),
        *("-- name: get_b(x)^", "-- name: get_b(x)!", "-- name: get_b(x)$"),  # aiosql's operators
        *("-- name: Get_B(x)", "-- name: get_b(X)", "-- name: get-b(x)", "-- name: (x)"),
        *("-- name: 1st(x)", "  -- name: get_b(x)", "\t-- name: get_b(x)"),
        "select 1; -- name: get_b(x)",
        # Misspelt. A comment would hide a query, or join it to the one before.
        *("-- nmae: get_b(x)", "-- naem: get_b()", "--nam: get_b(x)", "-- Name: get_b(x)"),
        *("-- NAME: get_b(x)", "-- names: get_b(x)", "-- name; get_b(x)", "-- name = get_b(x)"),
        *("-- name get_b(x)", "-- : get_b(x)", "---- name: get_b(x);", "  -- nmae: get_b(x, y)"),
    ],
)
def test_a_malformed_name_line_is_refused(folder: Path, line: str) -> None:
    """An invalid name line is refused with its line number."""
    assert refused_sql(folder, f"-- name: get_a()\nselect 1\n{line}\n;\n") == f"a.sql:3: {NAME}"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        *((f"-- set: {setting}", SET) for setting in ("work_mem", "work_mem = ", "work_mem 8MB")),
        *((f"-- set: {setting}", SET) for setting in ("= 8MB", "a = b; drop table c", "a = 'b")),
        ("-- set: statement_timeout = soon", "expected a time like 500ms, 5s or 1min"),
        ("-- sett: work_mem = 8MB", SET),
        ("-- set work_mem = 8MB", SET),
        ("-- set local work_mem = 8MB;", SET),
        ("-- settings: work_mem = 8MB", SET),
        ("-- Set: work_mem = 8MB", SET),
        ("-- set : work_mem to 8MB", SET),
        # Responses would change, or protections would be missing.
        ("-- set: timezone = CET", "timezone cannot be set here: the service relies on it"),
        ("-- set: datestyle = German", "datestyle cannot be set here: the service relies on it"),
        ("-- set: role = x", "role cannot be set here: the service relies on it"),
        (
            "-- set: catalogue.max_affected = 9",
            "catalogue.max_affected cannot be set here: the service relies on it",
        ),
    ],
)
def test_a_line_that_sets_nothing_is_refused(folder: Path, line: str, reason: str) -> None:
    """A setting that would not be sent is refused at its line."""
    assert refused_sql(folder, f"-- name: get_a()\n{line}\nselect 1;\n") == f"a.sql:2: {reason}"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("-- name: get_a()\nselect 1;\n\n-- name: get_a()\nselect 2;\n", "4: get_a is already in "),
        ("-- A file.\nselect 0;\n-- name: get_a()\nselect 1;\n", f"2: {BEFORE_NAME}"),
        ("-- a\ndrop table movies;\n-- why\n-- name: get_a()\nselect 1;", f"2: {BEFORE_NAME}"),
        ("-- A file.\n- name: get_b()\n-- name: get_a()\nselect 1;\n", f"2: {BEFORE_NAME}"),
        (
            "-- name: get_a()\n-- set: jit = on\n--\n-- set: jit = off\nselect 1;\n",
            "4: jit is already set in line 2",
        ),
        (
            "-- name: get_a()\nselect 1\n-- set: jit = off\n;\n",
            "3: expected `-- set:` between the name and the SQL",
        ),
        # For PostgreSQL, it would end the statement.
        (
            "-- name: get_a()\nselect 1\nfrom movies \0 where false;\n",
            "3: a NUL character: remove it",
        ),
        (
            "-- name: get_a(ids, title)\n-- a\nselect 1\n-- b\nwhere any (:ids)\n and :titel;\n",
            "6: unknown parameter :titel; declared are (ids, title)",
        ),
        ("\n-- name: get_a(ids, title)\nselect :ids;\n", f"2: {UNUSED}"),
        *(
            (f"-- name: get_a(title)\nselect {quoted};\n", f"1: {UNUSED}")
            for quoted in (
                "':title'",
                '":title"',
                "/* :title */ 1",
                "'it''s :title'",
                "'%(title)s'",
            )
        ),
        # A colon after a space or bracket starts a parameter, as it starts a variable in psql.
        *(
            (
                f"-- name: get_a(ids)\nselect :ids,\n  {piece}\n;",
                "3: unknown parameter :n; declared ",
            )
            for piece in ("genres[:n]", "genres[1 :n]")
        ),
        # Quotes and comments must end before the next query.
        *(
            (
                f"-- name: get_a()\nselect 1,\n  {piece} a\n;\n-- name: get_b()\nselect {later};\n",
                f"3: {piece} opens here and is never closed",
            )
            for piece in ("'", '"', "/*", "$$")
            for later in (("1", f"{piece} 1") if piece != "/*" else ("1",))
        ),
        *(
            (f"-- name: get_a()\nselect 1\nfrom movies; {second}\n", f"3: {TWO_STATEMENTS}")
            for second in ("select 2", "select 2;", ";", "\n-- then\ndelete from movies")
        ),
        *(
            (f"-- name: get_a()\nselect 1;\n-- name: get_b()\n{body}", "3: get_b has no SQL")
            for body in ("", "\n\n", "-- A comment.\n", "/* A\ncomment. */\n", "  ;\n")
        ),
    ],
)
def test_a_mistake_is_refused_at_its_line(folder: Path, text: str, reason: str) -> None:
    """Text that would be lost or changed is refused with file and line."""
    assert refused_sql(folder, text).startswith(f"a.sql:{reason}")


def test_a_name_in_two_files_is_refused(folder: Path) -> None:
    """Names are unique over all files; the message names both places."""
    (folder / "a.sql").write_text("-- first\n-- name: get_a()\nselect 1;\n")
    (folder / "b.sql").write_text("\n\n-- name: get_a()\nselect 2;\n")

    assert refused(folder) == "b.sql:3: get_a is already in a.sql:2"


@pytest.mark.parametrize(
    "line",
    [
        *("-- see get_b(x)", "-- get_b(x)", "--   now()", "-- as get_b(x) does"),
        *("-- the name: of a movie", "-- unnamed (so far)", "-- \\set ids '{1}'"),
        *("-- set by the trigger", "-- nothing: 1", "-- a\u2028line"),
        *("/* on two\n lines */", "/* it's /* nested */ isn't */"),
    ],
)
def test_an_ordinary_comment_is_accepted(folder: Path, line: str) -> None:
    """Comments may mention names, queries and settings; the SQL begins after them."""
    assert sql(folder, f"-- name: get_a()\n{line}\nselect 1;\n") == "select 1"
    if line.endswith("*/"):
        assert sql(folder, f"-- name: get_a()\n{line} select 1;\n") == "select 1"


@pytest.mark.parametrize(
    ("value", "sent"),
    [("'public, pg_catalog'", "public, pg_catalog"), ("'8 MB'", "8 MB"), ("1h;", "1h"), ("''", "")],
)
def test_a_value_may_be_quoted(folder: Path, value: str, sent: str) -> None:
    """As in PostgreSQL, a value with spaces or commas is in quotes."""
    (folder / "a.sql").write_text(f"-- name: get_a()\n-- set: x = {value}\nselect 1;\n")

    assert f"set local x = '{sent}'; " in load(folder)["get_a"].build_preamble(1)


def test_a_similar_name_of_a_missing_query_is_shown(folder: Path) -> None:
    """The message names the similar query, because the name may be misspelt."""
    (folder / "a.sql").write_text("\n-- name: get_movie(ids)\nselect :ids;\n")

    assert refused(folder, get_movies=expects("ids")) == (
        "a.sql:2: found get_movie, expected `-- name: get_movies(ids)`"
    )


# Settings.


def test_a_query_has_its_settings(folder: Path) -> None:
    """Each `-- set:` line is sent before the statement, in one message, as `set local`."""
    (folder / "a.sql").write_text(
        "-- name: get_a()\n-- set: work_mem = 8MB\n-- It sorts much.\n--set:jit='off'\n"
        "-- set: statement_timeout = 2min\nselect 1;\n"
    )

    (query,) = load(folder).values()

    assert query.build_preamble(1.5) == (
        "/* get_a sql/a.sql:1 */; set local timezone = 'UTC'; set local work_mem = '8MB'; "
        "set local jit = 'off'; set local statement_timeout = 1500; "
    )
    assert query.timeout == 120


@pytest.mark.parametrize(
    ("value", "seconds"), [("0", 0), ("1500", 1.5), ("1500ms", 1.5), ("3s", 3), ("1min", 60)]
)
def test_a_query_has_its_own_timeout(folder: Path, value: str, seconds: float) -> None:
    """The timeout may be written as in PostgreSQL."""
    (folder / "a.sql").write_text(
        f"-- name: get_a()\n-- set: statement_timeout = {value}\nselect 1;\n"
    )

    assert load(folder)["get_a"].timeout == seconds


@pytest.mark.parametrize("line", ["", "-- set: transaction_read_only = off\n"])
def test_a_query_that_reads_must_be_read_only(folder: Path, line: str) -> None:
    """A query that the service uses for reading must set transaction_read_only."""
    (folder / "a.sql").write_text(f"\n-- name: get_a()\n{line}select 1;\n")

    assert refused(folder, get_a=expects(writes=False)) == (
        "a.sql:2: get_a must only read: expected a line `-- set: transaction_read_only = on`"
        " below its name"
    )


@pytest.mark.parametrize(
    "line",
    [
        *("-- name: get_a(x,y)", "-- name: get_a(x, y)  "),
        *("--name:get_a( x, y )", "--\tname : get_a(x, y)"),
    ],
)
def test_blanks_in_a_name_line_do_not_matter(folder: Path, line: str) -> None:
    """A name line may have any number of spaces."""
    (folder / "a.sql").write_text(f"{line}\nselect :x, :y;\n")

    (query,) = load(folder).values()

    assert (query.name, query.parameters) == ("get_a", ("x", "y"))


def test_a_query_has_to_take_the_expected_parameters(folder: Path) -> None:
    """They are passed by name, in any order."""
    (folder / "a.sql").write_text("\n-- name: get_a(id, title)\nselect :id, :title;\n")

    reason = refused(folder, get_a=expects("ids", "title"))

    assert reason == "a.sql:2: get_a must take (ids, title), found (id, title)"
    assert set(load(folder, get_a=expects("title", "id"))) == {"get_a"}


@pytest.mark.parametrize(
    "piece",
    [
        *("1 -- by :y", "1 -- at 12:30, it's :y; 100%", '1 -- a " quote', "1 /* it's :y; */"),
        *("$$ :y $$", "$a$it's :y$a$", "$$\n-- :y\n$$", "'\n-- it is no comment\n'"),
        *("E'it\\'s :y'", "e':y'"),
        *("genres[1:2]", "genres[:2]", "genres[x:n]", "genres[1: n]"),
    ],
)
def test_other_text_than_parameters_is_sent_unchanged(folder: Path, piece: str) -> None:
    """Comments, quotes and slices may contain colons; only % is doubled for the driver."""
    text = f"-- name: get_a(x)\nselect :x,\n  {piece}\nfrom movies;\n"

    assert sql(folder, text) == f"select %(x)s,\n  {piece.replace('%', '%%')}\nfrom movies"


def test_a_file_that_cannot_be_read_is_refused(folder: Path) -> None:
    """A file in another encoding (with its line), or a folder with the name of a file."""
    (folder / "a.sql").write_bytes("-- name: get_a()\nselect 'Amélie';\n".encode("latin-1"))
    assert refused(folder).startswith("a.sql:2: not UTF-8")

    (folder / "a.sql").unlink()
    (folder / "a.sql").mkdir()
    assert refused(folder).startswith("a.sql:1: cannot be read")


def test_only_sql_files_are_read(folder: Path) -> None:
    """Files may have a byte order mark, which some editors on Windows write."""
    (folder / "a.sql").write_text("-- name: get_a()\nselect 1;\n", "utf-8-sig")
    (folder / "a.sql.orig").write_text("-- name: get_a()\nselect 2;\n")
    (folder / "README.md").write_text("-- name: nonsense\n")
    (folder / ".#a.sql").symlink_to("dba@laptop.1234")  # a lock file of Emacs
    (folder / "._a.sql").write_bytes(b"\x00\x05\x16\x07")  # a metadata file of macOS

    assert set(load(folder)) == {"get_a"}


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("select :x % 5", "select %(x)s %% 5"),
        ("select :x like '%s'", "select %(x)s like '%%s'"),
        ("select :x, '%(x)s'", "select %(x)s, '%%(x)s'"),
        ("select :x::text", "select %(x)s::text"),
        ("select cast(:x as text)", "select cast(%(x)s as text)"),
        ("select :x || ':x'", "select %(x)s || ':x'"),
        ("select :x, 'it''s :x'", "select %(x)s, 'it''s :x'"),
        ('select :x as ":x"', 'select %(x)s as ":x"'),
        ('select :x as "a"":x"', 'select %(x)s as "a"":x"'),
        ("select :x, '-- :x'", "select %(x)s, '-- :x'"),
        ("select :x, '/* :x */'", "select %(x)s, '/* :x */'"),
        ("select :x, ';'", "select %(x)s, ';'"),
        ("select :x, $$;$$", "select %(x)s, $$;$$"),
        ("select $1$a$1$, :x", "select $1$a$1$, %(x)s"),
        ("select :x -- 1 %", "select %(x)s -- 1 %%"),
        ("select 100%:x", "select 100%%%(x)s"),
        ("select :x -- a::b", "select %(x)s -- a::b"),
        ("select :x, E'\\n'", "select %(x)s, E'\\n'"),
        ("select /*+ SeqScan(m) */ :x", "select /*+ SeqScan(m) */ %(x)s"),
        ("select :x :: text", "select %(x)s :: text"),
        ("select :x, :x", "select %(x)s, %(x)s"),
    ],
)
def test_only_parameters_become_placeholders(folder: Path, text: str, sent: str) -> None:
    """Every other percent sign is literal."""
    assert sql(folder, f"-- name: get_a(x)\n{text}\n;\n").rstrip() == sent


def test_a_block_comment_may_hold_anything(folder: Path) -> None:
    """Colons, semicolons, quotes and name lines have no meaning in block comments."""
    text = "/* -- name: get_b() */\n-- name: get_a(x)\n/* :y; it's */\nselect /* ' */ :x; /* ; */\n"
    (folder / "a.sql").write_text(text)

    (query,) = load(folder).values()

    assert query.name == "get_a"
    assert query.sql == "select /* get_a sql/a.sql:2 */ /* ' */ %(x)s"


def test_a_statement_has_its_query_and_place(folder: Path) -> None:
    """PostgreSQL shows them with the statement (pg_stat_activity, the log)."""
    (folder / "a.sql").write_text("\n-- name: get_a()\nwith a as (select 1) select * from a;\n")

    (query,) = load(folder).values()

    assert query.build_preamble(1).startswith("/* get_a sql/a.sql:2 */;")
    assert query.sql.startswith("with /* get_a sql/a.sql:2 */ a as")


def test_a_statement_knows_its_line_in_the_file(folder: Path) -> None:
    """It is the first line of the SQL, after comments and settings."""
    text = (
        "/* A\n   file. */\n\n-- name: get_a(x)\n-- A comment.\n\n/* A\n   block. */\n"
        "-- set: jit = off\nselect\n  -- one\n  :x;\n"
    )
    (folder / "a.sql").write_text(text)

    (query,) = load(folder).values()

    assert (query.line, query.first_line, query.location) == (4, 10, "sql/a.sql:4")


def test_line_ends_of_windows_are_accepted(folder: Path) -> None:
    """A file with CRLF can be loaded, and its line numbers are right."""
    text = "-- name: get_a(x)\r\n-- A comment.\r\nselect\r\n  :x;\r\n-- name: get_b()\r\nselect 1;"
    (folder / "a.sql").write_bytes(text.encode())

    loaded = load(folder)

    assert loaded["get_a"].sql == "select /* get_a sql/a.sql:1 */\n  %(x)s"
    assert loaded["get_a"].first_line == 3
    assert loaded["get_b"].line == 5


@pytest.mark.parametrize("end", [";", "\n;\n", " ;\n\n", "", "; /* done */"])
def test_the_last_semicolon_is_left_out(folder: Path, end: str) -> None:
    """The semicolon is for psql; it is not sent."""
    assert sql(folder, f"-- name: get_a()\nselect 1{end}").strip() == "select 1"
