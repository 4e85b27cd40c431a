"""Ways to move bytes: base.py is the contract, registry.py the list, each folder one way."""
