"""The frozen nouns every layer shares. Imports nothing but numpy and the standard library."""
