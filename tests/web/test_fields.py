"""Tests how objects are loaded whose fields may be null or missing."""

from typing import Any

import pytest

from service.errors import Invalid, Malformed
from service.movies.rules import MOVIE
from service.web.fields import MAX_LISTED, JSONField, JSONObject, load_fields


class Person(JSONObject):
    """An object with a required and an optional field."""

    called = "a person"
    name = JSONField(str, "a string", None, {})
    age = JSONField(int, "an integer", None, {}, optional=True)


@pytest.mark.parametrize(
    ("sent", "whole", "partial"),
    [
        ({"name": "Ann", "age": 7}, {"name": "Ann", "age": 7}, {"name": "Ann", "age": 7}),
        ({"name": "Ann", "age": None}, {"name": "Ann"}, {"name": "Ann", "age": None}),
        ({"name": "Ann"}, {"name": "Ann"}, {"name": "Ann"}),
    ],
)
def test_an_optional_field_may_be_null_or_missing(
    sent: dict[str, Any], whole: dict[str, Any], partial: dict[str, Any]
) -> None:
    """For a whole object, both are the same; for a part of it, null removes the field."""
    assert load_fields(Person(), sent) == whole
    assert load_fields(Person(), sent, partial=True) == partial


def test_a_required_field_is_neither_null_nor_missing() -> None:
    """Null is refused in a part of the object, too."""
    for sent, is_partial in (({"age": 7}, False), ({"name": None}, False), ({"name": None}, True)):
        with pytest.raises(Invalid):
            load_fields(Person(), sent, partial=is_partial)


@pytest.mark.parametrize(
    "fields",
    [
        {str(number): 1 for number in range(2 * MAX_LISTED)},
        {"title": "a", "year": 2000, "runtime": "1 mins", "genres": list(range(2 * MAX_LISTED))},
    ],
    ids=["unknown fields", "genres that are no strings"],
)
def test_of_many_mistakes_of_one_kind_the_first_are_listed(fields: dict[str, Any]) -> None:
    """Otherwise a response could be much larger than its request."""
    with pytest.raises(Malformed) as caught:
        load_fields(MOVIE, fields)

    of_one_kind = [each for each in caught.value.failures if "string" in each.detail]
    unknown = [each for each in caught.value.failures if "unknown" in each.detail]
    assert len(of_one_kind or unknown) == MAX_LISTED
