"""Where the time goes, what limits it, and what to do about it."""
