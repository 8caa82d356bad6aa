"""What a movie is, and the operations on it; knows no HTTP."""
