"""What observers share: extents, histograms, windows."""
