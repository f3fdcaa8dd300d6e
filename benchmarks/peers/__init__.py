"""The peers' own tools beside ortune: each in its own environment, all files in one paired run."""
