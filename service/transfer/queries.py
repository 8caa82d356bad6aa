"""The queries of queries/transfer.sql as import and export expect them."""

from collections.abc import Mapping

from service.catalogue.movie import TYPES
from service.database.queries import Expected

QUERIES: Mapping[str, Expected] = {
    "reserve_movie_ids": Expected(
        {"drawn": int}, [{"highest": 0}], "import", writes=True, by_command=True
    ),
    "import_movies": Expected({}, [{"movies": "[]"}], "import", writes=True, by_command=True),
    "analyze_movies": Expected({}, [{}], "import", writes=True, by_command=True),
    "export_movies": Expected(TYPES, [{"after_id": "0", "size": 0}], "export", by_command=True),
}
