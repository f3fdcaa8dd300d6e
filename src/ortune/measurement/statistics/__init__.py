"""Numbers of many samples: extents and histograms of values, exact tests, bets, bootstrap."""
