"""The movie catalogue: a strict JSON-over-HTTP API on PostgreSQL; CONTRIBUTING.md has a tour."""

__version__ = "1.2.0"
