"""Pre- and postprocessing of images as part of a model."""
