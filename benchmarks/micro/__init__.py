"""The cost of the Python paths, apart from the bytes that they move."""
