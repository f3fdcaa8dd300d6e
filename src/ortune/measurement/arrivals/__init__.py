"""How runs are issued to sessions side by side, and their tails summed up."""
