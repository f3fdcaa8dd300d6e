"""What this machine's processors can do and may be used for."""
