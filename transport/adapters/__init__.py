"""Other people's runtimes: one file each, imported by its users only. None knows another."""
