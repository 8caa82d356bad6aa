"""The benchmark programs; README.md says how to run them."""
