"""Whole engines timed: inside a user's frame, and several processes of them side by side."""
