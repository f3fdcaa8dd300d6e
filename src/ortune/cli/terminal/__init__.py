"""What verbs share: commands made of requests, settings files, tables, progress."""
