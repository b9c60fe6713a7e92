"""The meanings of keys: all of the table, and no others."""

from __future__ import annotations

from devrun.config import KEYS
from devrun.config.described import all_keys, meanings


def test_every_top_level_key_has_a_meaning_in_the_documents():
    assert not [key for key in KEYS if key not in meanings()]


def test_every_meaning_is_of_a_key_that_is_there():
    assert set(meanings()) <= {path for path, _ in all_keys()}
