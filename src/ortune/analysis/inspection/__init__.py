"""What is in a model, what is odd, and who would run which nodes."""
