"""Switches the feed of changes on or off in the database, after a migration."""

from service.database.migrations.files import Report
from service.database.migrations.session import call


def switch_feed(url: str, report: Report, *, is_on: bool) -> None:
    """Switch the feed of changes on or off, unless it is so already."""
    if call(url, report, "switch_movie_feed", is_on):
        report(f"the feed of changes is {'on' if is_on else 'off'} now")
