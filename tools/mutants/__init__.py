"""Small changes to the modules that decide, each of which some test must notice."""
