"""Where the processes of a mesh come from: one file for each host. None knows another."""
