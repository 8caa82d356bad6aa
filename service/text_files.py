"""Text files are in UTF-8, with or without the byte order mark that some editors write."""

import codecs

START_BYTES = 4  # enough for `require_utf8`


def require_utf8(start: bytes) -> None:
    """Raise `ValueError` if these first bytes of a text are of UTF-16 or UTF-32.

    ASCII without a mark has a NUL in each character; the mark of UTF-32 begins with that of UTF-16.
    """
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or 0 in start[:START_BYTES]:
        raise ValueError("it is in UTF-16 or UTF-32: save it as UTF-8")


def decode(raw: bytes) -> str:
    """Decode a text; `ValueError` if it is not in UTF-8."""
    require_utf8(raw)
    return raw.decode("utf-8-sig")
