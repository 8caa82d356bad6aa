"""Faults and hostile clients, with real processes: `make drills` writes docs/drills.md."""
