"""The check of the layout of `src/ortune`, run by the unit tests."""
