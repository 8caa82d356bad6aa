"""Imports a file as the command does, without its process."""

from pathlib import Path

from conftest import ROOT

from service.app import EXPECTED
from service.database import query_files
from service.movies import formats
from service.movies.importing import ImportResult, import_rows
from service.movies.rows import open_source


def import_file(url: str, path: Path, rejects: Path, **options: bool) -> ImportResult:
    """Import `path`; the extension gives the format. `options`: of `import_rows`."""
    kind = formats.detect_format(path.name, None, formats.IMPORTED)
    with open_source(str(path)) as stream:
        return import_rows(
            url,
            query_files.load(ROOT / "queries", EXPECTED),
            formats.read_rows(path.name, stream, kind, {}, ()),
            rejects,
            report=print,
            **{"update": False, "allow_rejects": False, "dry_run": False, **options},
        )
