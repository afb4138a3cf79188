"""What can be told of the benchmark of clients without tags without a server."""

from __future__ import annotations

import argparse

from benchmarks.untagged import (
    KINDS,
    MAX_TOKENS,
    Outcome,
    Program,
    body_of,
    document_of,
    programs_of,
    table_of,
)


def test_programs_depend_on_the_seed_alone() -> None:
    programs = programs_of(1, rate_per_s=10.0, seconds=20.0)
    assert programs == programs_of(1, rate_per_s=10.0, seconds=20.0)
    assert programs != programs_of(2, rate_per_s=10.0, seconds=20.0)
    assert 140 < len(programs) < 260
    assert {program.kind for program in programs} == set(KINDS)
    for program in programs:
        shape = [len(lengths) for lengths in program.tokens]
        assert shape == [step.calls for step in KINDS[program.kind]]
        assert all(2 <= tokens <= MAX_TOKENS for each in program.tokens for tokens in each)
    assert len({program.name for program in programs}) == len(programs)


def test_a_call_says_its_deadline_and_nothing_of_its_length_to_a_policy() -> None:
    program = Program("1-0", "essay", 0.0, 2.0, ((250,),))
    [step] = KINDS["essay"]
    body = body_of(program, step, 250, 3.5)
    assert body["deadline"] == 3.5
    assert body["max_tokens"] == MAX_TOKENS
    assert "vllm_xargs" not in body


def test_the_result_has_the_ratio_of_sums() -> None:
    options = argparse.Namespace(load=1.5, rounds=1, seconds=10.0)
    outcomes = {
        "with": [Outcome("essay", True, 100, 1.0), Outcome("question", True, 10, 1.0)],
        "without": [Outcome("essay", True, 100, 1.0), Outcome("question", False, 10, 1.0)],
    }
    document = document_of(outcomes, 4.0, {"essay": 0.5}, options)
    assert document["with"] == {"programs_s": 0.25, "tokens_s": 13.75, "in_time": 1.0}
    assert document["programs_ratio"] == 2.0
    assert document["tokens_ratio"] == 1.1
    assert document["in_time_by_kind"]["question"] == {"with": 1.0, "without": 0.0}
    text = table_of(document)
    assert "2.00" in text
    assert "2 programs at 1.5 times 4.00 a second" in text


def test_nothing_in_time_has_no_ratio() -> None:
    options = argparse.Namespace(load=1.5, rounds=1, seconds=10.0)
    outcomes = {
        "with": [Outcome("essay", True, 100, 1.0)],
        "without": [Outcome("essay", False, 100, 1.0)],
    }
    document = document_of(outcomes, 4.0, {}, options)
    assert document["programs_ratio"] is None
    assert "-" in table_of(document)
