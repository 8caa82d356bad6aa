"""What the service is measured with, and against; `make bench` runs it. README.md explains."""
