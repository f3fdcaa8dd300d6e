"""Package targets: one file each, loaded by name; what `pack --for` writes."""
