"""The feed of changes, and the history of a movie."""
