"""What can be found out about models and settings without a search."""
