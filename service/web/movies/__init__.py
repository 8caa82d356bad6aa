"""/v1/movies: a handler parses the request, calls the catalogue and responds."""
