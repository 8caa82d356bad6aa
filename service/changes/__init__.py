"""The feed of changes: what was created, changed and deleted."""
