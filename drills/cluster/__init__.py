"""The cluster of ops/cluster/ on this machine: `make cluster` and `make cluster-drill`."""
