"""The leading plans of a search at other batches."""
