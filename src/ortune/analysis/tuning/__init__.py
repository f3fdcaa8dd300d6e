"""Find the runtime settings that a model runs fastest with."""
