"""What metrics share: which outputs count, functions of the user, top-k."""
