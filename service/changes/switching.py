"""Switches the feed of changes on or off in the database, after a migration."""

from service.database.migrations.files import Report
from service.database.migrations.session import connect, retry


def switch_feed(url: str, report: Report, *, is_on: bool) -> None:
    """Switch the feed of changes on or off, unless it is so already."""
    with connect(url, report) as session, session.cursor() as cursor:
        retry(lambda: cursor.execute("select switch_movie_feed(%s)", (is_on,)), report)
        if cursor.fetchone() == (True,):
            report(f"the feed of changes is {'on' if is_on else 'off'} now")
