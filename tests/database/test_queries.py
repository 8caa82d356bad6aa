"""The query files: what can be told wrong from their text alone, and what must be left as it is."""

from pathlib import Path

import pytest

from service.database import queries
from service.database.queries import Expected, Query
from service.errors import OperatorError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for query files whose path is like none of the words in them."""
    folder = tmp_path / "sql"
    folder.mkdir()
    return folder


def load(folder: Path, **expected: Expected) -> dict[str, Query]:
    """Load the folder; `name=Expected(...)` is what the service relies on."""
    return queries.load(folder, expected)


def refused(folder: Path, **expected: Expected) -> str:
    """Load what must be refused, and return why, with paths from the folder on."""
    with pytest.raises(OperatorError) as caught:
        load(folder, **expected)
    return str(caught.value).replace(f"{folder}/", "")


def refused_sql(folder: Path, text: str) -> str:
    """Load a file a.sql of this text, which must be refused, and return why."""
    (folder / "a.sql").write_text(text)
    return refused(folder)


def sql(folder: Path, text: str) -> str:
    """Load a file of one query and return the SQL that the driver gets."""
    (folder / "a.sql").write_text(text)
    (query,) = load(folder).values()
    return query.sql


def test_a_query_knows_its_name_its_parameters_and_its_place(folder: Path) -> None:
    """Each query of each file is found, with where it stands."""
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
    """A query that the service needs is asked for by the line it begins with."""
    (folder / "a.sql").write_text("-- name: get_a(x)\nselect :x;\n")

    with pytest.raises(OperatorError) as caught:
        load(folder, get_b=Expected(("ids", "names"), ("id",)))

    assert str(caught.value) == (
        f"{folder}: no query `-- name: get_b(ids, names)`, which the service needs"
    )


def test_a_missing_folder_is_refused_like_a_missing_query(tmp_path: Path) -> None:
    """Where there is no folder at all, the message says which one was looked at."""
    nowhere = tmp_path / "nowhere"

    with pytest.raises(OperatorError) as caught:
        load(nowhere, get_b=Expected((), ()))

    assert str(caught.value) == f"{nowhere}: no query `-- name: get_b()`, which the service needs"


def test_a_name_twice_in_a_file_is_refused(folder: Path) -> None:
    """Of two queries of one name, neither wins in silence."""
    text = "-- name: get_a()\nselect 1;\n\n-- name: get_a()\nselect 2;\n"

    assert refused_sql(folder, text) == "a.sql:4: get_a is already in a.sql:1"


def test_a_name_in_two_files_is_refused(folder: Path) -> None:
    """Names are unique over all files; the message names both places."""
    (folder / "a.sql").write_text("-- first\n-- name: get_a()\nselect 1;\n")
    (folder / "b.sql").write_text("\n\n-- name: get_a()\nselect 2;\n")

    assert refused(folder) == "b.sql:3: get_a is already in a.sql:2"


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("-- name: get_a", id="no parameter list"),
        pytest.param("-- name: get_a(x", id="open parameter list"),
        pytest.param("-- name: get_a(x)^", id="operator for one row"),
        pytest.param("-- name: get_a(x)!", id="operator for no rows"),
        pytest.param("-- name: get_a(x)$", id="operator for one value"),
        pytest.param("-- name: Get_A(x)", id="upper case"),
        pytest.param("-- name: get_a(X)", id="parameter in upper case"),
        pytest.param("-- name: get-a(x)", id="dash"),
        pytest.param("-- name: (x)", id="no name"),
        pytest.param("-- name: 1st(x)", id="digit first"),
        pytest.param("-- name: get_a(x) and more", id="text after it"),
        pytest.param("  -- name: get_a(x)", id="indented"),
        pytest.param("\t-- name: get_a(x)", id="indented by a tab"),
        pytest.param("select 1; -- name: get_a(x)", id="behind SQL"),
    ],
)
def test_a_line_that_does_not_name_a_query_well_is_refused(folder: Path, line: str) -> None:
    """A line that looks like a name but is none is refused by its own line number."""
    text = f"-- A file.\n\n{line}\nselect :x;\n"

    reason = refused_sql(folder, text)

    assert reason == "a.sql:3: expected a line `-- name: verb_noun(parameter, ...)`"


@pytest.mark.parametrize(
    "line",
    [
        "-- name: get_a(x,y)",
        "-- name: get_a(x, y)  ",
        "--name:get_a( x, y )",
        "--\tname : get_a(x, y)",
    ],
)
def test_blanks_in_a_name_line_do_not_matter(folder: Path, line: str) -> None:
    """The line that names a query may be spaced as its author likes."""
    (folder / "a.sql").write_text(f"{line}\nselect :x, :y;\n")

    (query,) = load(folder).values()

    assert (query.name, query.parameters) == ("get_a", ("x", "y"))


def test_an_unknown_parameter_is_refused_where_it_stands(folder: Path) -> None:
    """A misspelt parameter is found at its own line, also below comments."""
    text = (
        "-- name: get_a(ids, title)\n-- What it does.\nselect 1\n-- more\nwhere 1 = any (:ids)\n"
        "  and 'a' = :titel;\n"
    )

    reason = refused_sql(folder, text)

    assert reason == "a.sql:6: unknown parameter :titel; declared are (ids, title)"


def test_an_unused_parameter_is_refused(folder: Path) -> None:
    """A declared parameter that the SQL does not use is refused at the line that declares it."""
    text = "\n-- name: get_a(ids, title)\nselect :ids;\n"

    reason = refused_sql(folder, text)

    assert reason == "a.sql:2: the parameter title is declared but not used"


@pytest.mark.parametrize("quoted", ["':title'", '":title"', "/* :title */ 1", "'it''s :title'"])
def test_a_parameter_within_quotes_or_a_comment_is_not_used(folder: Path, quoted: str) -> None:
    """What only looks like a parameter does not count as its use."""
    text = f"-- name: get_a(title)\nselect {quoted};\n"

    reason = refused_sql(folder, text)

    assert reason == "a.sql:1: the parameter title is declared but not used"


def test_other_parameters_than_expected_are_refused(folder: Path) -> None:
    """A query of an expected name has to take what the service passes."""
    (folder / "a.sql").write_text("\n-- name: get_a(id, title)\nselect :id, :title;\n")

    reason = refused(folder, get_a=Expected(("ids", "title"), ()))

    assert reason == "a.sql:2: get_a must take (ids, title), found (id, title)"


def test_the_order_of_parameters_is_free(folder: Path) -> None:
    """Parameters are passed by name."""
    (folder / "a.sql").write_text("-- name: get_a(title, ids)\nselect :ids, :title;\n")

    loaded = load(folder, get_a=Expected(("ids", "title"), ()))

    assert set(loaded) == {"get_a"}


@pytest.mark.parametrize(
    ("sql", "within"),
    [
        pytest.param(", 1 -- by :ids", "-- by :ids", id="trailing comment"),
        pytest.param(", 1 -- at 12:30", "-- at 12:30", id="time in a trailing comment"),
        pytest.param(", $$ :ids $$", "$$ :ids $$", id="dollar quotes"),
        pytest.param(", $a$it's :ids$a$", "$a$it's :ids$a$", id="tagged dollar quotes"),
        pytest.param(", $$\n:ids\n$$", r"$$\n:ids\n$$", id="dollar quotes over lines"),
        pytest.param(", E'it\\'s :ids'", "E'it\\\\'s :ids'", id="escape string"),
        pytest.param(", e':ids'", "e':ids'", id="escape string in lower case"),
    ],
)
def test_a_colon_where_it_would_be_misread_is_refused(folder: Path, sql: str, within: str) -> None:
    """Where aiosql would take plain text for a parameter, the file is refused, and says so."""
    text = f"-- name: get_a(ids)\nselect :ids\n  {sql}\n;\n"

    reason = refused_sql(folder, text)

    assert reason.replace('"', "'") == (
        f"a.sql:3: a colon and a name within '{within}' would be taken for a parameter"
    )


@pytest.mark.parametrize(
    ("piece", "name"), [("[1:2]", "2"), ("[:2]", "2"), ("[ids:n]", "n"), ("[1 :n]", "n")]
)
def test_an_array_slice_that_would_be_misread_is_refused(
    folder: Path, piece: str, name: str
) -> None:
    """The end of a slice right behind its colon would be taken for a parameter."""
    text = f"-- name: get_a(ids)\nselect :ids,\n  genres{piece}\nfrom movies;\n"

    reason = refused_sql(folder, text)

    assert reason == f"a.sql:3: unknown parameter :{name}; declared are (ids)"


def test_a_slice_with_a_blank_behind_its_colon_works(folder: Path) -> None:
    """There is a way to write a slice."""
    text = "-- name: get_a()\nselect genres[1: 2] from movies;\n"

    assert sql(folder, text) == "select genres[1: 2] from movies"


@pytest.mark.parametrize("second", ["select 2", "select 2;", ";", "\n-- then\ndelete from movies"])
def test_two_statements_are_refused(folder: Path, second: str) -> None:
    """A query is one statement; the message points at the semicolon that more follows."""
    text = f"-- name: get_a()\nselect 1\nfrom movies; {second}\n"

    reason = refused_sql(folder, text)

    assert reason == "a.sql:3: expected one statement a query; more follows this semicolon"


@pytest.mark.parametrize("body", ["", "\n\n", "-- Only a comment.\n", "/* Only\na comment. */\n"])
def test_a_query_without_sql_is_refused(folder: Path, body: str) -> None:
    """A name with nothing below it is refused."""
    text = f"-- name: get_a()\nselect 1;\n-- name: get_b()\n{body}"

    assert refused_sql(folder, text) == "a.sql:3: get_b has no SQL"


def test_a_query_of_a_mere_semicolon_is_refused(folder: Path) -> None:
    """An empty statement is no SQL either."""
    text = "\n-- name: get_a()\n  ;\n"

    assert refused_sql(folder, text).startswith("a.sql:2: ")


def test_a_file_that_is_not_utf8_is_refused(folder: Path) -> None:
    """A file in another encoding is named."""
    (folder / "a.sql").write_bytes("-- name: get_a()\nselect 'Amélie';\n".encode("latin-1"))

    assert refused(folder).startswith("a.sql: cannot be read as UTF-8: ")


def test_a_file_that_cannot_be_read_is_refused(folder: Path) -> None:
    """What only has the name of a file is named too."""
    (folder / "a.sql").mkdir()

    assert refused(folder).startswith("a.sql: cannot be read")


def test_a_byte_order_mark_does_not_matter(folder: Path) -> None:
    """A file as some editors on Windows save it loads like any other."""
    (folder / "a.sql").write_text("-- name: get_a()\nselect 1;\n", "utf-8-sig")

    assert set(load(folder)) == {"get_a"}


def test_other_files_are_left_alone(folder: Path) -> None:
    """Only *.sql is read."""
    (folder / "a.sql").write_text("-- name: get_a()\nselect 1;\n")
    (folder / "a.sql.orig").write_text("-- name: get_a()\nselect 2;\n")
    (folder / "README.md").write_text("-- name: nonsense\n")

    assert set(load(folder)) == {"get_a"}


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        pytest.param("select :x % 5", "select %(x)s %% 5", id="modulo"),
        pytest.param("select :x like '%s'", "select %(x)s like '%%s'", id="percent in quotes"),
        pytest.param("select :x, '%(x)s'", "select %(x)s, '%%(x)s'", id="like a placeholder"),
        pytest.param("select :x::text", "select %(x)s::text", id="cast"),
        pytest.param("select cast(:x as text)", "select cast(%(x)s as text)", id="in brackets"),
        pytest.param("select :x || ':x'", "select %(x)s || ':x'", id="in quotes"),
        pytest.param("select :x, 'it''s :x'", "select %(x)s, 'it''s :x'", id="doubled quote"),
        pytest.param('select :x as ":x"', 'select %(x)s as ":x"', id="identifier in quotes"),
        pytest.param('select :x as "a"":x"', 'select %(x)s as "a"":x"', id="doubled double quote"),
        pytest.param("select :x, '-- :x'", "select %(x)s, '-- :x'", id="comment in quotes"),
        pytest.param("select :x, '/* :x */'", "select %(x)s, '/* :x */'", id="block in quotes"),
        pytest.param("select :x, ';'", "select %(x)s, ';'", id="semicolon in quotes"),
        pytest.param("select :x, $$;$$", "select %(x)s, $$;$$", id="semicolon in dollar quotes"),
        pytest.param("select $1$a$1$, :x", "select $1$a$1$, %(x)s", id="tagged dollar quotes"),
        pytest.param("select :x -- why", "select %(x)s -- why", id="trailing comment"),
        pytest.param("select :x -- a::b", "select %(x)s -- a::b", id="cast in a comment"),
        pytest.param("select :x, E'\\n'", "select %(x)s, E'\\n'", id="escape string"),
        pytest.param(
            "select /*+ SeqScan(m) */ :x", "select /*+ SeqScan(m) */ %(x)s", id="hint comment"
        ),
        pytest.param("select :x :: text", "select %(x)s :: text", id="cast with blanks"),
        pytest.param("select :x, :x", "select %(x)s, %(x)s", id="twice"),
    ],
)
def test_sql_reaches_the_driver_as_it_was_meant(folder: Path, text: str, sent: str) -> None:
    """Only parameters become placeholders; every other percent sign is literal."""
    assert sql(folder, f"-- name: get_a(x)\n{text}\n;\n").rstrip() == sent


def test_a_block_comment_may_hold_anything(folder: Path) -> None:
    """Names, colons, semicolons, quotes and names of queries in block comments are comment."""
    text = "/* -- name: get_b() */\n-- name: get_a(x)\n/* :y; it's */ select /* ' */ :x; /* ; */\n"
    (folder / "a.sql").write_text(text)

    (query,) = load(folder).values()

    assert query.name == "get_a"
    assert query.sql.split() == ["select", "%(x)s"]


def test_comment_lines_may_hold_colons(folder: Path) -> None:
    """A line that is only a comment may speak of :parameters and of times, and is not sent."""
    text = "-- name: get_a(x)\n-- By :x, not :y; at 12:30.\nselect :x\n  -- and :z\n;\n"

    assert sql(folder, text).rstrip() == "select %(x)s"


def test_each_line_knows_its_line_in_the_file(folder: Path) -> None:
    """Through comment lines and block comments, each line that is sent knows where it stood."""
    text = (
        "/* A\n   file. */\n\n-- name: get_a(x)\n-- A comment.\n\n/* A\n   block. */\nselect\n"
        "  -- one\n  :x, /* a\n  b */\n\n  2;\n"
    )
    (folder / "a.sql").write_text(text)

    (query,) = load(folder).values()
    places = {
        line.strip(): number
        for line, number in zip(query.sql.split("\n"), query.lines, strict=False)
        if line.strip()
    }

    assert query.line == 4
    assert places == {"select": 9, "%(x)s,": 11, "2": 14}


def test_line_ends_of_windows_are_as_good(folder: Path) -> None:
    """A file with CRLF loads, and its line numbers are right."""
    text = "-- name: get_a(x)\r\n-- A comment.\r\nselect\r\n  :x;\r\n-- name: get_b()\r\nselect 1;"
    (folder / "a.sql").write_bytes(text.encode())

    loaded = load(folder)

    assert loaded["get_a"].sql == "select\n  %(x)s"
    assert loaded["get_a"].lines[:2] == (3, 4)
    assert loaded["get_b"].line == 5


@pytest.mark.parametrize("end", [";", "\n;\n", " ;\n\n", "", "; /* done */"])
def test_the_last_semicolon_is_left_out(folder: Path, end: str) -> None:
    """What psql needs at the end of a statement is not sent."""
    assert sql(folder, f"-- name: get_a()\nselect 1{end}").strip() == "select 1"


def test_the_queries_of_the_service_load() -> None:
    """The files that come with the service are as the service expects."""
    from service.app import EXPECTED  # noqa: PLC0415 - the one test that looks beyond this module

    root = Path(__file__).parents[2]

    loaded = queries.load(root / "queries", EXPECTED)

    assert loaded.keys() == EXPECTED.keys()
