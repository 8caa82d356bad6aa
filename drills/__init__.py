"""Faults and hostile clients, with real processes: `make drills`."""
