"""A reader of bundles in one file, for where ortune is not installed."""
