"""Some 230 request bodies that are unreadable: their JSON is such as parsers interpret differently.

tests/web/test_bodies.py has the rules and the limits.
"""

import gzip
import json
from collections.abc import Iterator
from typing import Any

from service.movies.rules import MOVIE

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


def split(texts: str) -> list[str]:
    """Return the texts between spaces."""
    return texts.split()


def raw(field: str, text: str) -> bytes:
    """A movie in which one field's value is this JSON text."""
    values = {name: json.dumps(value) for name, value in GOOD.items()} | {field: text}
    members = [f'"{name}": {value}' for name, value in values.items()]
    return ("{" + ", ".join(members) + "}").encode("utf-8", "surrogatepass")


NOT_JSON = [
    *rb"""{ } [ ] {}} {] nul True undefined movie 'a' " "a {title:1} {"title"} {"title":}
    {"title":1,} {,"title":1} {"title"1} {"a":1;"b":2} {1:2} {null:1} {"a":1}//c {"a":/*c*/1}
    {"a":"\x"} {"a":"\u12"} {"a":"\u{41}"} {"a":"\U0041"} {"a":"\"} {"a":"\0"} <movie/>
    title=Moana&year=2016 {"title":"Moana" {"genres":["a" {"genres":["a",]}""".split(),
    b'{"genres":[,]}',
    *(b"", b" ", b"\n\t \r", b"\0", b"{'title': 'Moana'}", b'{"title":1 "year":2}', b"# c\n{}"),
    *(b'{"a":"\n"}', b'{"a":"\t"}', b'{"a":"\x00"}', b'{"a":"\x1f"}', b"title: Moana"),
    *(b"\x0b{}", b"\x0c{}", b"\xc2\xa0{}", b"{}\x00", b"\x1e{}", b"{}\x0c", b"\xe2\x80\xa8{}"),
    *(b"data: {}\n\n", b"\x80\x04K\x01.", b"\x1f\x8b"),
]
NOT_ONE_OBJECT = [
    *b'null true false 0 -1 1.5 "movie" [] [{}] [1,2] ""'.split(),
    *(TEXT.encode() + more for more in b'{} x , ] "" ; \0 \xef\xbb\xbf'.split(b" ")),
    *(TEXT.encode() + more for more in (b" null", b" 1", b"\n[]", b"\n" + TEXT.encode(), b" \xff")),
    f"[{TEXT}]".encode(),
    f'{{"movie": {TEXT}}}'.encode(),
    json.dumps(TEXT).encode(),
]
NOT_UTF8 = [
    *(TEXT.encode(f"utf-{form}") for form in ("16", "16-le", "32")),
    *(TEXT.encode() + b"\xff", b"\xff" + TEXT.encode(), b"\xef\xbb\xbf" + TEXT.encode()),
    *(
        TEXT.encode().replace(b"Moana", bad)
        for bad in (
            b"\x80",
            b"Am\xe9lie",
            b"\xc0\x80",
            b"\xed\xa0\x80",
            b"\xf4\x90\x80\x80",
            b"\xc3",
        )
    ),
]
REPEATED = [
    *((TEXT[:-1] + f", {again}}}").encode() for again in ('"title": "a"', '"tit\\u006ce": "a"')),
    *(b'{"":1,"":1}', b'{"title":{"a":1,"a":2}}'),
]
UNKNOWN_NAMES = [
    *split("id version created_at updated_at titel Title TITLE a.b title[] 0 null tïtle 🎬"),
    *split("__proto__ constructor toString $ref $where *"),
    *("", "title ", "title\0", "\u200btitle", "a" * 10_000, "'; drop table movies"),
]
UNKNOWN = [
    *(movie(**{name: 1}) for name in UNKNOWN_NAMES),
    raw("year", "2016").replace(b'"year"', b'"\\ud800"'),
]
NUMBERS = [
    *split("NaN Infinity -Infinity nan +1 .5 5. 0x7E0 0o3740 1_000 01 - --1 1e 1e+ 1.e3"),
    *split("2016.0 2016.5 2.016e3 2016e0 1E400 -1E400 1e999 1e-999 ٢٠١٦ ２０１６ 2016n 1,5"),
    *("1" + "0" * 18, "9" * 19, str(2**63), str(2**64), "9" * 400, "9" * 4300, "9" * 4301),
    *("9" * 100_000, "-" + "9" * 5000),
]
TYPES = {
    "title": ("1", "1.5", "true", "false", "[]", "{}", '["Moana"]', '{"a":1}', "-0", "[[]]"),
    "year": ('"2016"', '"MMXVI"', '""', "true", "false", "[]", "{}", "[2016]", '{"a":1}', "2016.0"),
    "runtime": ("107", "107.0", "true", "false", "[]", "{}", '["107 mins"]', '{"mins":107}', "0"),
    "genres": (
        *('"drama"', '"[]"', '""', "1", "true", "{}", '{"0":"a"}', "[1]", "[null]", "[true]"),
        *('["a", 1]', '["a", null]', '["a", []]', '["a", {}]', "[[]]", '[["a"]]', "[1.5]"),
    ),
}
OF_OTHER_TYPES = {
    "string": ("1", "1.5", "true", "[]", "{}", '["a:1"]'),
    "integer": ('"1"', "1.5", "true", "[]", "{}", "[1]", "1.0"),
    "array": ('"a"', "1", "true", "{}"),
}
TYPES |= {
    name: OF_OTHER_TYPES[field.metadata["type"]]
    for name, field in MOVIE.fields.items()
    if name not in TYPES
}
RUNTIMES = [
    *("", " ", "107", "107mins", "107  mins", " 107 mins", "107 mins ", "107 min", "107 minutes"),
    *("107 Mins", "107 MINS", "mins", " mins", "mins 107", "1h47m", "PT107M", "1:47", "107\nmins"),
    *("107\u00a0mins", "107 mins\n", "107 mins\0", "107 mins 107 mins", "--1 mins", "- 1 mins"),
    *(
        f"{number} mins"
        for number in (
            *split("107.5 1e2 +107 0x6b 007 ١٠٧ １０７ 1_07 1,07 NaN ∞"),
            *("9" * 19, "9" * 5000),
        )
    ),
]


def odd_bodies() -> Iterator[tuple[str, bytes]]:
    """Yield a description and the body."""
    kinds = {
        "not JSON": NOT_JSON,
        "not one object": NOT_ONE_OBJECT,
        "not UTF-8": NOT_UTF8,
        "repeated": REPEATED,
        "unknown": UNKNOWN,
        "number": [raw("year", number) for number in NUMBERS],
        "type": [raw(field, text) for field, texts in TYPES.items() for text in texts],
        "runtime": [movie(runtime=runtime) for runtime in RUNTIMES],
        "deep": [b"[" * 100_000, raw("title", '{"a":' * 50_000 + "1" + "}" * 50_000)],
        "large": [TEXT.encode() + b" " * (LIMIT + 1 - len(TEXT))],
        "compressed": [gzip.compress(TEXT.encode())],
    }
    for kind, bodies in kinds.items():
        for number, body in enumerate(bodies):
            yield f"{kind} {number}", body
