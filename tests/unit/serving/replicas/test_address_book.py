"""Replicas that announce themselves, end, and fall silent."""

from __future__ import annotations

import pytest

from serving.replicas import address_book
from serving.replicas.address_book import FORGET_S, AddressBook


def test_replicas_are_known_while_they_announce_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(address_book.time, "monotonic", lambda: now_s)
    book = AddressBook()
    book.announce("a", "http://a:1")
    book.announce("b", "http://b:1")
    now_s += FORGET_S / 2
    book.announce("a", "http://a:1")
    assert book.urls() == ["http://a:1", "http://b:1"]
    now_s += 2 * FORGET_S
    assert book.urls() == []
    book.announce("b", "http://b:1")
    book.withdraw("b")
    book.withdraw("never announced")
    assert book.urls() == []
