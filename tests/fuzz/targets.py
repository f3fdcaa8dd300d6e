"""The readers that are fuzzed, by name."""

from __future__ import annotations

from tests.fuzz import bundles, commands, feeds, models, requests, settings, words

READERS = {
    one.name: one
    for one in (
        models.TARGET,
        bundles.TARGET,
        *feeds.TARGETS,
        settings.TARGET,
        words.TARGET,
        *requests.TARGETS,
    )
}
"""In this process."""
TARGETS = READERS | {commands.TARGET.name: commands.TARGET}
