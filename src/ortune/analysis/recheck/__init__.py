"""A bundle's golden samples and benchmark, run again where it is now."""
