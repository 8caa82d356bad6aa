"""The way of every request: the code tour of CONTRIBUTING.md follows it, in its order."""
