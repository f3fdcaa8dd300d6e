"""Choose by measuring how a bundle is served: sessions, batches, delay, threads."""
