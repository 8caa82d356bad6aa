"""The words of a search for titles, as `title_query` of the migrations separates them."""

import re
from unicodedata import normalize

MAX_WORDS = 10
MIN_PREFIX_LETTERS = 2

# The characters that `fold_text` of the migrations removes, and those that it replaces by a blank.
MARKS = re.compile(
    "[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]"
)
SEPARATORS = re.compile(
    "[\u0001-\u0029\u002b-\u002f:-@\\[-`{-\u00bf\u00d7\u00f7\u2000-\u206f\u20a0-\u20cf\u2190-\u2bff"
    "\u2e00-\u2e7f\u3000-\u3004\u3008-\u3020\u3030\u30fb\ufe10-\ufe6f]"
)


def split_words(text: str) -> list[str]:
    """Split the text of a search; `cas*` is a prefix. Removes accents, keeps case."""
    folded = SEPARATORS.sub(" ", MARKS.sub("", normalize("NFKD", text)))
    return [word for word in folded.replace("*", "* ").split(" ") if word not in ("", "*")]
