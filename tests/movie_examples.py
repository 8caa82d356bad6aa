"""Examples of each field of a movie; the tests of fields, rules and bodies take them from here."""

from typing import Any

# Two valid values of each field, which differ. They pass through every way in and out.
ONE: dict[str, Any] = {
    "title": "Moana",
    "year": 2016,
    "runtime": "107 mins",
    "genres": ["animation"],
    "external_id": "imdb:tt3521164",
}
OTHER: dict[str, Any] = {
    "title": "Up",
    "year": 2009,
    "runtime": "96 mins",
    "genres": ["family", "comedy"],
    "external_id": "netflix:70108986",
}
# Values of columns that break one constraint, by its name.
BROKEN: list[tuple[str, dict[str, Any]]] = [
    ("movies_title_not_blank", {"title": ""}),
    ("movies_title_not_blank", {"title": " \t\n"}),
    ("movies_title_not_blank", {"title": "\u200b\u3164\U000e0041"}),
    ("movies_title_not_blank", {"title": "\ufffc\U00013441\U00016fe4\U0001d159"}),
    ("movies_title_at_most_500_bytes", {"title": "x" * 501}),
    ("movies_title_at_most_500_bytes", {"title": "é" * 250 + "x"}),
    ("movies_year_1888_or_later", {"year": 1887}),
    ("movies_runtime_positive", {"runtime": 0}),
    ("movies_runtime_positive", {"runtime": -1}),
    ("movies_external_id_not_blank", {"external_id": ""}),
    ("movies_external_id_not_blank", {"external_id": " \u2060"}),
    ("movies_external_id_at_most_255_bytes", {"external_id": "é" * 127 + "xx"}),
    *(
        ("movies_external_id_no_control_characters", {"external_id": f"a{sign}"})
        for sign in "\x01\t\n\x1f\x7f\x80\x9f"
    ),
    *(
        ("movies_external_id_trimmed", {"external_id": text.replace("_", blank)})
        for blank in " \u00a0\u200b\ufeff\U000e0041"
        for text in ("_a:1", "a:1_")
    ),
    ("movies_genres_one_to_five", {"genres": []}),
    ("movies_genres_one_to_five", {"genres": ["a", "b", "c", "d", "e", "f"]}),
    ("movies_genres_one_to_five", {"genres": [["a", "b"], ["c", "d"]]}),
    ("movies_genres_one_to_five", {"genres": "[0:0]={a}"}),  # SQL's arrays may begin anywhere
    ("movies_genres_no_null", {"genres": ["a", None]}),
    ("movies_genres_not_empty", {"genres": ["a", ""]}),
    *(("movies_genres_not_empty", {"genres": [*"abcd"[:n], " \u2060"]}) for n in range(5)),
    *(
        ("movies_genres_different", {"genres": list(letters)})
        for letters in ("aa", "aba", "abcda", "abb", "abcdb", "abcc", "abcdc", "abcdd")
    ),
    *(
        ("movies_genres_at_most_100_bytes", {"genres": [*"abcd"[:n], "é" * 50 + "x"]})
        for n in range(5)
    ),
    ("movies_version_positive", {"version": 0}),
]
