"""Choose by measuring how a bundle is served: sessions, batches, delay and threads for a goal."""
