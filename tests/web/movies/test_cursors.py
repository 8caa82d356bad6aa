"""Cursors: each place has one, and only that one is taken."""

import string

import pytest

from service.catalogue.paging import Filter, Key
from service.web.movies import cursors


@pytest.mark.parametrize("title", ["a", "ab", "abc"])  # base64 ends in three ways
def test_only_the_canonical_form_is_taken(title: str) -> None:
    """Base64 that decodes to the same bytes is another URL of the same page."""
    cursor = cursors.encode(Key(title, 7), 9, Filter(), "title", backwards=False)
    ends = f"{string.ascii_letters}{string.digits}-_".replace(cursor[-1], "")

    assert cursors.decode(cursor, Filter(), "title").key == Key(title, 7)
    for wrong in (f"{cursor}=", f"{cursor}\n", *(cursor[:-1] + end for end in ends)):
        with pytest.raises(ValueError, match=r"."):
            cursors.decode(wrong, Filter(), "title")
