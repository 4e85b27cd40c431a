"""`python -m transport` is the command `transport`."""

from __future__ import annotations

from transport.cli import main

if __name__ == "__main__":
    main()
