"""Two processes, one reading or writing the other's memory."""
