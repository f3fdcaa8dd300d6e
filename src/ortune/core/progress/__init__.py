"""Progress as it is shown: a board of how far a verb is, and where there is no terminal."""
