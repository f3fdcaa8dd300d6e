"""Third-party plugins for the tests, found through their entry point like any other."""
