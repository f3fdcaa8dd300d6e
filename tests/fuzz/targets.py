"""The readers that are fuzzed, by name."""

from __future__ import annotations

from tests.fuzz import bundles, feeds, models, settings, words

TARGETS = {
    one.name: one
    for one in (models.TARGET, bundles.TARGET, feeds.TARGET, settings.TARGET, words.TARGET)
}
