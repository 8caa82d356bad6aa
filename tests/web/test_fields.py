"""Tests how objects are loaded whose fields may be null or missing."""

from typing import Any

import pytest

from service.web.fields import JSONField, JSONObject, load_fields, text_field


class Person(JSONObject):
    """An object with a required and an optional field."""

    called = "a person"
    name = text_field(9)
    age = JSONField(int, "an integer", optional=True)


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
