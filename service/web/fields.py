"""The objects in bodies and files: marshmallow schemas with fields of exactly one JSON type each.

An `Unreadable` message is about a value that cannot be read (400), any other about a broken rule
(422). An error has all messages; with both kinds, it is a 400.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property
from typing import Any, ClassVar

from marshmallow import Schema, ValidationError
from marshmallow.fields import Field

from service.errors import Failure, Invalid, Malformed, quote

MAX_NUMBER = 10**18 - 1  # unless a field has its own; one with more digits may not fit a bigint
MAX_LISTED = 100  # mistakes of one kind: a body may have 20,000
# White_Space, Cc, Default_Ignorable_Code_Point and the like: the same as in is_visible. Two of them
# end a line of JavaScript, so they are in \s: generators of clients write a pattern as it is.
BLANK = (
    r"\x00-\x20\x7f-\xa0\xad\u034f\u061c\u115f\u1160\u1680\u17b4\u17b5\u180b-\u180f\u2000-\u200f"
    r"\s\u202a-\u202f\u205f-\u206f\u2800\u3000\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffc"
)
BLANKS = re.compile(
    rf"[{BLANK}\U00013430-\U00013442\U00016fe4\U0001bca0-\U0001bca3\U0001d159"
    r"\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
TEXT = rf"^[^\x00]*[^{BLANK}][^\x00]*$"  # for JSON Schema: not blank, no NUL
Values = dict[str, Any]  # of the fields that were loaded, by name; the schema says their types
JSON_TYPES = {str: "string", int: "integer", list: "array"}
NAMES: Mapping[type, str] = {  # of the types, in messages
    bool: "a boolean",
    int: "an integer",
    float: "a decimal number",
    str: "a string",
    list: "an array",
    dict: "an object",
}


class Unreadable(str):
    """A message about a value of a wrong type or form."""

    __slots__ = ()


class JSONObject(Schema):
    """The fields of an object; messages call it by its name."""

    called: ClassVar[str]  # with an article
    read_only: ClassVar[Collection[str]] = ()  # fields that responses have, and requests must not

    @cached_property
    def optional(self) -> tuple[str, ...]:
        """The fields that may be missing."""
        return tuple(name for name, field in self.fields.items() if not field.required)


class JSONField(Field[Any]):
    """A value of exactly one JSON type; `shape` is the rest of its JSON Schema, for the reference.

    `rule` is a validator of marshmallow; a function, as apispec would describe a `Range` itself.
    `convert` turns the value into the one that is loaded, or raises a `ValueError` that says what
    it must be. `optional`: it may be missing, or null unless it is not `nullable`.
    """

    def __init__(  # noqa: PLR0913 - the options of a field
        self,
        kind: type,
        expected: str,
        rule: Callable[[Any], Any] | None = None,
        *,
        convert: Callable[[Any], Any] | None = None,
        optional: bool = False,
        nullable: bool = True,
        **shape: Any,
    ) -> None:
        super().__init__(
            required=not optional,
            allow_none=optional and nullable,
            validate=rule,
            error_messages={"required": "is required", "null": "must not be null"},
            metadata={"type": JSON_TYPES[kind], **shape},
        )
        if not nullable:
            self.error_messages["null"] = [Unreadable(f"must be {expected}, found null")]
        self._kind = kind
        self._expected = expected
        self._convert = convert

    def _deserialize(self, value: Any, *_: Any, **__: Any) -> Any:
        if type(value) is not self._kind:
            raise ValidationError(Unreadable(f"must be {self._expected}, found {type_name(value)}"))
        try:
            loaded = self._convert(value) if self._convert else value
        except ValueError as error:
            raise ValidationError(Unreadable(error)) from error
        if isinstance(loaded, int) and abs(loaded) > self.metadata.get("maximum", MAX_NUMBER):
            raise ValidationError(Unreadable("is too big"))
        return loaded


def whole_number(maximum: int, **shape: Any) -> JSONField:
    """Make a field that is an integer from 1 to `maximum`."""

    def check(number: int) -> None:  # a larger one is too big already
        if number < 1:
            raise ValidationError(f"must be 1 to {maximum}")

    return JSONField(int, "an integer", check, minimum=1, maximum=maximum, **shape)


def find_text_errors(text: str, max_bytes: int) -> list[str]:
    """Find blank text and characters that PostgreSQL cannot store; only measure a longer text."""
    errors = []
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        errors.append("must not contain a lone surrogate")
        size = len(text.encode("utf-8", "surrogatepass"))
    if size > max_bytes:
        return [*errors, f"must be at most {max_bytes} bytes of UTF-8"]
    if not BLANKS.sub("", text):
        errors.append("must not be blank")
    if "\0" in text:
        errors.append("must not contain a NUL character")
    return errors


def load_fields(
    schema: JSONObject,
    row: object,
    *,
    partial: bool | Sequence[str] | AbstractSet[str] | None = False,
) -> Values:
    """Return the loaded values of the fields, without optional ones that are null or missing.

    `partial`: of the fields that were sent, also if they are null; or the fields that need not be
    sent. Raises `Malformed` or `Invalid`, with every mistake.
    """
    if not isinstance(row, dict):
        text = f"must be an object, found {type_name(row)}"
        raise Malformed(f"{schema.called} {text}", [Failure("", text)])
    try:
        values: Values = schema.load(row, partial=partial)
    except ValidationError as error:
        messages = error.messages_dict
    else:
        return values if partial else {n: v for n, v in values.items() if v is not None}
    raise _explain(schema, row, messages)


def _explain(schema: JSONObject, row: Values, messages: dict[str, Any]) -> Malformed | Invalid:
    names = ", ".join(schema.fields)
    refused = []
    for name in [name for name in row if name not in schema.fields][:MAX_LISTED]:
        text = f"unknown field {quote(name)}; {schema.called} has {names}"
        if name in schema.read_only:
            text = f'the field "{name}" is read-only; clients send {names}'
        pointer = quote(name)[1:-1].replace("~", "~0").replace("/", "~1")
        refused.append(Failure(pointer, text))
    failures = [each for name in schema.fields for each in _flatten(name, messages.get(name, ()))]
    failures.sort(key=lambda failure: not isinstance(failure.detail, Unreadable))
    if refused:
        return Malformed(refused[0].detail, refused + failures)
    field, detail = failures[0]
    if isinstance(detail, Unreadable):
        return Malformed(f'"{field}" {detail}', failures)
    return Invalid(failures)


def _flatten(name: str, messages: Collection[Any]) -> Iterator[Failure]:
    """Yield the messages of a field, and those of its items, which are in dicts by index."""
    for message in messages:
        if isinstance(message, dict):
            for index, texts in message.items():
                yield from (Failure(f"{name}/{index}", text) for text in texts)
        else:
            yield Failure(name, message)


def type_name(value: object) -> str:
    """Name the JSON type of a value for a message."""
    return NAMES.get(type(value), "null")
