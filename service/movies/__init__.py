"""What a movie is, and the operations on movies; independent of HTTP."""
