"""Import and export of movies: formats, rows, and the two operations."""
