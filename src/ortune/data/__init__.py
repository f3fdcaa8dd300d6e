"""Feeds: samples, labels and groups from files, callables or made up; their split."""
