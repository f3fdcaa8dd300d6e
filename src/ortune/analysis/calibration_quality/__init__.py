"""Is the calibration data enough, and which observer suits it."""
