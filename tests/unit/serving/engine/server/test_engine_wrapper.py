"""What a request is given before the engine receives it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from serving.engine.server import engine_wrapper
from serving.engine.server.api_keys import ApiKey, digest_of
from serving.engine.server.engine_wrapper import set_key_tags

KEY = ApiKey(digest_of(b"secret"), "alice")
HEAVY = ApiKey(digest_of(b"other"), "bob", weight=2.0)


@pytest.mark.parametrize(
    ("key", "tags", "expected"),
    [
        (None, None, None),
        (None, {"slo_user": "bob"}, {"slo_user": "bob"}),
        (ApiKey(digest_of(b"plain")), {"slo_user": "bob"}, {"slo_user": "bob"}),
        (KEY, None, {"slo_user": "alice"}),
        (KEY, {"slo_user": "alice"}, {"slo_user": "alice"}),
        (KEY, {"slo_weight": 2}, {"slo_weight": 2, "slo_user": "alice"}),
        (HEAVY, {"slo_weight": 2}, {"slo_weight": 2.0, "slo_user": "bob"}),
    ],
)
def test_a_request_has_the_user_and_weight_of_its_key(
    monkeypatch: pytest.MonkeyPatch, key: ApiKey | None, tags: Any, expected: Any
) -> None:
    monkeypatch.setattr(engine_wrapper, "key_of_request", lambda: key)
    params: Any = SimpleNamespace(extra_args=tags)
    set_key_tags(params)
    assert params.extra_args == expected
