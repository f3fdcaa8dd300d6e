"""The process that sends requests: one event loop, bodies made before, nothing decoded."""
