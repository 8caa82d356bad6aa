"""Imports a file as the command does, without its process."""

from pathlib import Path

from conftest import ROOT

from service.app import EXPECTED
from service.database import query_files
from service.transfer import formats
from service.transfer.files import reading
from service.transfer.importing import Outcome, import_rows
from service.transfer.rejects import Rejects


def import_file(
    url: str, path: Path, rejects: Path, *, allow_rejects: bool = False, dry_run: bool = False
) -> Outcome:
    """Import `path`, whose name tells its format."""
    kind = formats.format_of(path.name, None, formats.IMPORTED)
    with reading(str(path)) as source:
        return import_rows(
            url,
            query_files.load(ROOT / "queries", EXPECTED),
            formats.rows(path.name, source, kind, {}, ()),
            Rejects(rejects),
            allow_rejects=allow_rejects,
            dry_run=dry_run,
            report=lambda _: None,
        )
