"""Original and winner side by side: what became of each node, and what it takes."""
