"""Text files are in UTF-8, with or without the byte order mark that some editors write."""

import codecs

MARKS = {  # that of UTF-32 begins with that of UTF-16
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
START_BYTES = 4  # enough for `require_utf8`


def require_utf8(start: bytes) -> None:
    """Raise `ValueError` if these first bytes of a text are of UTF-16 or UTF-32."""
    found = next((name for mark, name in MARKS.items() if start.startswith(mark)), "")
    nuls = start[:START_BYTES].count(0)
    if not found and 0 < nuls < START_BYTES:  # ASCII without a mark
        found = "UTF-32" if nuls == START_BYTES - 1 else "UTF-16"
    if found:
        raise ValueError(f"it is in {found}: save it as UTF-8")


def decode(raw: bytes) -> str:
    """Decode a text; `ValueError` if it is not in UTF-8."""
    require_utf8(raw)
    return raw.decode("utf-8-sig")
