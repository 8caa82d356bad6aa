"""One module a resource; a handler reads as: parse, call the catalogue, respond."""
