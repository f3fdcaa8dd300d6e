"""Making environments for other releases of the runtimes, and looking after them."""
