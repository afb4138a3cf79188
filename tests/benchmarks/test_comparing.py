"""Shared code of benchmarks in virtual time: the policies to compare."""

from __future__ import annotations

from benchmarks.comparing import policies


def test_a_policy_that_is_named_twice_is_compared_once() -> None:
    names = ("calm_published:batch=9,cutoff=0.5", "fcfs", "calm_published:cutoff=0.5,batch=9")
    assert [each.name for each in policies(names)] == ["fcfs", "calm_published"]
