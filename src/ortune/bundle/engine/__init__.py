"""Open a bundle or a plain model and run it with the settings that it was tuned with."""
