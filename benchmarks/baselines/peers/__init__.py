"""Other libraries that move tensors, driven beside this one, turn by turn in one run."""
