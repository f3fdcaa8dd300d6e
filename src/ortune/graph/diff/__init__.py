"""Which nodes and weights of one model are which of another."""
