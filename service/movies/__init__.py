"""Movies: what a movie is, its routes, lists, batches, import and export."""
