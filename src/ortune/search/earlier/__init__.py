"""What earlier searches on this kind of machine leave to the next."""
