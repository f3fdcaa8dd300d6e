"""The loop of a search: accepts, claims and keeps time; a policy proposes."""
