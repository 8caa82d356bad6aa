"""Imports a file as the command does, without its process."""

from pathlib import Path

from conftest import ROOT

from service.database import query_files
from service.expected import EXPECTED
from service.movies import formats
from service.movies.formats import open_source
from service.movies.importing import ImportResult, import_rows


def import_file(
    url: str, path: Path, rejects: Path, *, allow_rejects: bool = False, dry_run: bool = False
) -> ImportResult:
    """Import `path`; the extension gives the format."""
    kind = formats.detect_format(path.name, None, formats.IMPORTED)
    with open_source(str(path)) as stream:
        return import_rows(
            url,
            query_files.load(ROOT / "queries", EXPECTED),
            formats.read_rows(path.name, stream, kind, {}, ()),
            rejects,
            allow_rejects=allow_rejects,
            dry_run=dry_run,
        )
