"""`make drills` takes minutes and is no part of the tests; it must fit the handbook."""

from drills.backups import EXAMPLE_TIME, VERIFY, Handbook


def test_the_commands_for_backups_are_found() -> None:
    """The drills run all blocks of commands of that section in docs/operators/backup.md."""
    handbook = Handbook()

    assert VERIFY in handbook.back_up
    assert EXAMPLE_TIME in handbook.set_time
