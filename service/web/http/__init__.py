"""HTTP itself, for all resources: the context of a request, headers, conditions, compression."""
