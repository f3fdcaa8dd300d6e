"""What serving a model costs, and when an optimization has paid back."""
