"""What of an executed or rewritten model stands for what of its source."""
