"""The models that a server has: opened, exchanged, counted, and asked for answers."""
