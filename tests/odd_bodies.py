"""Some 300 invalid request bodies, each with the status of its response.

They break every rule of the contract, or have JSON that parsers interpret differently.
"""

import gzip
import json
from collections.abc import Iterator
from typing import Any

GOOD: dict[str, Any] = {
    "title": "Moana",
    "year": 2016,
    "runtime": "107 mins",
    "genres": ["animation", "adventure"],
}
TEXT = json.dumps(GOOD)
LIMIT = 1_048_576


def movie(**changes: Any) -> bytes:
    """A movie with these fields changed; a field given as `...` is left out."""
    merged = {**GOOD, **changes}
    return json.dumps({name: value for name, value in merged.items() if value is not ...}).encode()


def raw(field: str, text: str) -> bytes:
    """A movie in which one field's value is this JSON text."""
    members = [f'"{name}": {text if name == field else json.dumps(GOOD[name])}' for name in GOOD]
    return ("{" + ", ".join(members) + "}").encode("utf-8", "surrogatepass")


NOT_JSON = [
    *(b"", b" ", b"\n\t \r", b"\0", b"{", b"}", b"[", b"]", b"{}}", b"{]", b"nul", b"True"),
    *(b"undefined", b"movie", b"'a'", b'"', b'"a', b"{'title': 'Moana'}", b"{title: 1}"),
    *(b'{"title"}', b'{"title":}', b'{"title":1,}', b'{,"title":1}', b'{"title":1 "year":2}'),
    *(b'{"title" 1}', b'{"a":1;"b":2}', b"{1:2}", b"{null:1}", b'{"a":1}//c', b'{"a":/*c*/1}'),
    *(b"# c\n{}", b'{"a":"\n"}', b'{"a":"\t"}', b'{"a":"\x00"}', b'{"a":"\x1f"}', b'{"a":"\\x"}'),
    *(b'{"a":"\\u12"}', b'{"a":"\\u{41}"}', b'{"a":"\\U0041"}', b'{"a":"\\"}', b'{"a":"\\0"}'),
    *(b"\x0b{}", b"\x0c{}", b"\xc2\xa0{}", b"{}\x00", b"\x1e{}", b"{}\x0c", b"\xe2\x80\xa8{}"),
    *(b"title=Moana&year=2016", b"<movie/>", b"title: Moana", b"data: {}\n\n", b"\x80\x04K\x01."),
    *(b'{"title":"Moana"', b'{"genres":["a"', b'{"genres":["a",]}', b'{"genres":[,]}', b"\x1f\x8b"),
]
NOT_ONE_OBJECT = [
    *(b"null", b"true", b"false", b"0", b"-1", b"1.5", b'"movie"', b"[]", b"[{}]", b"[1,2]", b'""'),
    *(TEXT.encode() + more for more in (b"{}", b"\n" + TEXT.encode(), b"x", b",", b"]", b" null")),
    *(
        TEXT.encode() + more
        for more in (b" 1", b'""', b"\n[]", b"\0", b";", b" \xff", b"\xef\xbb\xbf")
    ),
    f"[{TEXT}]".encode(),
    f'{{"movie": {TEXT}}}'.encode(),
    json.dumps(TEXT).encode(),
]
NOT_UTF8 = [
    TEXT.encode("utf-16"),
    TEXT.encode("utf-16-le"),
    TEXT.encode("utf-16-be"),
    TEXT.encode("utf-32"),
    TEXT.encode("utf-32-le"),
    b"\xef\xbb\xbf" + TEXT.encode(),
    b"\xfe\xff",
    *(
        TEXT.encode().replace(b"Moana", bad)
        for bad in (
            *(b"\xff", b"\xfe", b"\x80", b"Am\xe9lie", b"\xc0\x80", b"\xc1\xbf", b"\xe0\x80\x80"),
            *(b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xf4\x90\x80\x80", b"\xf8\x88\x80\x80\x80"),
            *(b"\xe2\x82", b"\xf0\x9f\x92", b"\xc3", b"\xf5\x80\x80\x80", b"\xf0\x80\x80\x80"),
        )
    ),
    TEXT.encode() + b"\xff",
    b"\xff" + TEXT.encode(),
]
REPEATED = [
    (TEXT[:-1] + ', "title": "Moana"}').encode(),
    (TEXT[:-1] + ', "title": "Other"}').encode(),
    (TEXT[:-1] + ', "tit\\u006ce": "Moana"}').encode(),
    (TEXT[:-1] + ', "year": 2016}').encode(),
    (TEXT[:-1] + ', "genres": [], "genres": ["a"]}').encode(),
    b'{"a":1,"a":1}',
    b'{"":1,"":1}',
    b'{"title":{"a":1,"a":2}}',
]
UNKNOWN = [
    *(
        movie(**{name: 1})
        for name in (
            *("id", "version", "created_at", "updated_at", "titel", "Title", "TITLE", "title ", ""),
            *("__proto__", "constructor", "toString", "$ref", "$where", "*", "title\0", "tïtle"),
            *(
                "\u200btitle",
                "🎬",
                "a" * 10_000,
                "a.b",
                "title[]",
                "0",
                "null",
                "'; drop table movies",
            ),
        )
    ),
    raw("year", "2016").replace(b'"year"', b'"\\ud800"'),
    raw("year", "2016").replace(b'"year"', b'"\\udfff\\ud800"'),
]
NUMBERS = [
    *(
        "NaN",
        "Infinity",
        "-Infinity",
        "nan",
        "+1",
        ".5",
        "5.",
        "0x7E0",
        "0o3740",
        "1_000",
        "01",
        "-",
    ),
    *(
        "--1",
        "1e",
        "1e+",
        "1.e3",
        "2016.0",
        "2016.5",
        "2.016e3",
        "2016e0",
        "1E400",
        "-1E400",
        "1e999",
    ),
    *("1e-999", "9" * 18, "1" + "0" * 18, "9" * 19, str(2**63), str(2**64), "9" * 400, "9" * 4300),
    *("9" * 4301, "9" * 100_000, "-" + "9" * 5000, "٢٠١٦", "２０１６", "2016n", "1,5", "2016 "),
]
UNREADABLE_NUMBERS = [number for number in NUMBERS if number not in ("9" * 18, "2016 ")]
TYPES = {
    "title": ("1", "1.5", "true", "false", "[]", "{}", '["Moana"]', '{"a":1}', "-0", "[[]]"),
    "year": ('"2016"', '"MMXVI"', '""', "true", "false", "[]", "{}", "[2016]", '{"a":1}', "2016.0"),
    "runtime": ("107", "107.0", "true", "false", "[]", "{}", '["107 mins"]', '{"mins":107}', "0"),
    "genres": (
        *('"drama"', '"[]"', '""', "1", "true", "{}", '{"0":"a"}', "[1]", "[null]", "[true]"),
        *('["a", 1]', '["a", null]', '["a", []]', '["a", {}]', "[[]]", '[["a"]]', "[1.5]"),
    ),
}
RUNTIMES = [
    *("", " ", "107", "107mins", "107  mins", " 107 mins", "107 mins ", "107 min", "107 minutes"),
    *("107 Mins", "107 MINS", "mins", " mins", "mins 107", "1h47m", "PT107M", "1:47", "107.5 mins"),
    *(
        "1e2 mins",
        "+107 mins",
        "0x6b mins",
        "007 mins",
        "--1 mins",
        "- 1 mins",
        "١٠٧ mins",
        "107\nmins",
    ),
    *("107\u00a0mins", "107 mins\n", "107 mins\0", "1_07 mins", "1,07 mins", "NaN mins", "∞ mins"),
    *("9" * 19 + " mins", "9" * 5000 + " mins", "107 mins 107 mins", "１０７ mins"),
]
DEEP = [
    *(b"[" * depth + b"]" * depth for depth in (100, 1_000, 100_000)),
    *(b'{"a":' * depth + b"1" + b"}" * depth for depth in (100, 1_000, 100_000)),
    b"[" * 500_000,
    b'{"a":' * 200_000,
    raw("genres", "[" * 50_000 + "]" * 50_000),
    raw("title", '{"a":' * 50_000 + "1" + "}" * 50_000),
]
LARGE = [
    b" " * (LIMIT + 1),
    b"x" * (LIMIT + 1),
    TEXT.encode() + b" " * (LIMIT + 1 - len(TEXT)),
    movie(title="x" * LIMIT),
    b"[" * (2 * LIMIT),
]
RULES: list[bytes] = [
    b"{}",
    *(movie(**{name: ...}) for name in GOOD),
    *(movie(**{name: None}) for name in GOOD),
    *(
        movie(title=title)
        for title in ("", " ", "\t\n", "\u00a0", "\u2003 ", "\u3000", "a\0b", "\0")
    ),
    *(movie(title=title) for title in ("x" * 501, "é" * 251, "💿" * 126, "x" * 100_000)),
    *(
        raw("title", title)
        for title in ('"\\ud800"', '"a\\udfffb"', '"\\ude00\\ud83d"', '"\\u0000"')
    ),
    *(movie(year=year) for year in (1887, 0, -1, -2016, 9999, 2**31, 2**31 - 1, -(2**31), 10**17)),
    *(raw("year", number) for number in ("-0", "9" * 18)),
    *(movie(runtime=f"{n} mins") for n in (0, -1, -107, -0, 2**31, 10**17, -(10**17))),
    movie(runtime="-0 mins"),
    *(movie(genres=genres) for genres in ([], [""], [" "], ["a", ""], ["\0"], ["a\0"], ["\u2003"])),
    *(movie(genres=[genre]) for genre in ("x" * 101, "é" * 51, "💿" * 26, "x" * 100_000)),
    *(movie(genres=genres) for genres in (["a", "a"], ["a", "b", "a"], ["a"] * 5, [*"abcdef"])),
    *(raw("genres", genres) for genres in ('["\\ud800"]', '["a", "\\udc00"]', '["a", "\\u0061"]')),
    movie(genres=[str(number) for number in range(10_000)]),
    movie(title="", year=1, runtime="0 mins", genres=[]),
]


def odd_bodies() -> Iterator[tuple[str, bytes, int]]:
    """Yield a description, the body, and the status of the response."""
    kinds = {
        "not JSON": NOT_JSON,
        "not one object": NOT_ONE_OBJECT,
        "not UTF-8": NOT_UTF8,
        "repeated": REPEATED,
        "unknown": UNKNOWN,
        "number": [raw("year", number) for number in UNREADABLE_NUMBERS],
        "type": [raw(field, text) for field, texts in TYPES.items() for text in texts],
        "runtime": [movie(runtime=runtime) for runtime in RUNTIMES],
        "deep": DEEP,
        "large": LARGE,
        # If both apply, the body cannot be read.
        "both": [
            movie(title="", year="1999"),
            movie(title=..., runtime="107"),
            movie(year=9999, extra=1),
            movie(genres=["", 1]),
            movie(title="", genres="drama"),
        ],
        "compressed": [gzip.compress(TEXT.encode())],
    }
    for kind, bodies in kinds.items():
        for number, body in enumerate(bodies):
            yield f"{kind} {number}", body, 400
    for number, body in enumerate(RULES):
        yield f"rule {number}", body, 422
