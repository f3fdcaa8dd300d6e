"""What quantizers share: grids, layers, types and node filters."""
