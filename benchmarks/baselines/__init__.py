"""What a transfer is compared with: the same bytes by bare system calls, no library between."""
