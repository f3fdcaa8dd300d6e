"""What a search expects of plans that it has not tried, and which there are."""
