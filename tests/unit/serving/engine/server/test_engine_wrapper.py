"""What a request is given before the engine receives it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from serving.engine.server import engine_wrapper
from serving.engine.server.engine_wrapper import set_user


@pytest.mark.parametrize(
    ("user", "tags", "expected"),
    [
        (None, None, None),
        (None, {"slo_user": "bob"}, {"slo_user": "bob"}),
        ("alice", None, {"slo_user": "alice"}),
        ("alice", {"slo_user": "alice"}, {"slo_user": "alice"}),
        ("alice", {"slo_weight": 2}, {"slo_weight": 2, "slo_user": "alice"}),
    ],
)
def test_a_request_has_the_user_of_its_key(
    monkeypatch: pytest.MonkeyPatch, user: str | None, tags: Any, expected: Any
) -> None:
    monkeypatch.setattr(engine_wrapper, "user_of_request", lambda: user)
    params: Any = SimpleNamespace(extra_args=tags)
    set_user(params)
    assert params.extra_args == expected
