"""The protocol over HTTP: one ASGI application without a framework."""
