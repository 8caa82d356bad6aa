"""The lists that are measured, of the movies of database.py."""

from bench.load import HOT_LIST, LISTS

NUMBERS = range(1, 31)
WHOLE_LIST = "/v1/movies"
# Each kind has as many paths as the others, and a share of 20 lists.
KINDS = {
    "all": (8, [WHOLE_LIST for _ in NUMBERS]),
    "genre": (5, [f"/v1/movies?genres=genre{number}&sort=-year" for number in NUMBERS]),
    "years": (4, [f"/v1/movies?year={1950 + number}..{1953 + number}" for number in NUMBERS]),
    "title": (3, [f"/v1/movies?title=word{number * 7}" for number in NUMBERS]),
}
# The paths of each workload, to be sent in random order.
PATHS = {
    LISTS: [path for share, paths in KINDS.values() for path in paths * share],
    HOT_LIST: [WHOLE_LIST],
}
