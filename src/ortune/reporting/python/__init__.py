"""What Python users call and see: verbs that write pages, and a study in a notebook."""
