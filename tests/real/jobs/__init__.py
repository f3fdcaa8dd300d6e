"""One file = one real job: the folder listing is the catalog."""
