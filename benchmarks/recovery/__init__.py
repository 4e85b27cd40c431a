"""How long it takes until a rank that was killed is back: `python -m benchmarks.recovery`."""
