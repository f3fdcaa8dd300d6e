"""What several sections say."""
