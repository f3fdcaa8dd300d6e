"""A bundle as a container image: layers, image layout, and the program that serves it."""
