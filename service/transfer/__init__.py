"""Movies from files and into files: formats, rows, and the two commands that use them."""
