"""Traces: four formats are detected, and errors in a file are reported with their place."""

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from serving.sim.programs.programs import Call, Program
from serving.sim.workloads.trace_files import (
    MAX_CALLS,
    MAX_STAGES,
    LongestCall,
    TraceRequest,
    read_trace,
)
from serving.sim.workloads.traces import trace_programs
from serving.slo import SloKind
from serving.workload_errors import BadTrace, InvalidWorkload, TraceMissing
from tests.places import DATA

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:56.6805900,10,0
"""
HEAD, ROWS = AZURE.split("\n", 1)
AZURE_HEAD = HEAD + "\n"
MOONCAKE = """{"timestamp": 3000, "input_length": 1000, "output_length": 5, "hash_ids": [0, 7]}
{"timestamp": 1000, "input_length": 600, "output_length": 3, "hash_ids": null}

{"timestamp": 1500.5, "input_length": 20, "output_length": 1}
"""
DEEP_RESEARCH = """{"workflows": [
    {"stages": [{"state": "generate_query", "requests": [{"in": 436, "out": 99}]},
                {"state": "web_research", "requests": [{"in": 5, "out": 6}, {"in": 7, "out": 8}]}]},
    {"stages": [{"state": "generate_query", "requests": [{"in": 1, "out": 2}]}]}
]}"""
TREE = """{"workflows": [{"stages": [
    {"kind": "propose", "calls": [{"in": 170, "out": 164, "n": 1}]},
    {"kind": "value", "calls": []},
    {"kind": "value", "calls": [{"in": 365, "out": 39, "n": 3}, {"in": 400, "out": 40, "n": 2}]}
]}]}"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "trace"


def load_trace(file: Path, **arguments: Any) -> tuple[Program, ...]:
    return trace_programs(read_trace(file), **arguments)


def test_azure_requests_are_sorted_with_seconds_since_the_first(file: Path) -> None:
    file.write_text(AZURE)
    first, second, third = read_trace(file).requests
    assert first == TraceRequest(0.0, 374, 44)
    assert second.arrival_s == pytest.approx(4.314579)
    assert third == TraceRequest(10.0, 10, 1)


def test_azure_times_may_have_a_time_zone(file: Path) -> None:
    file.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
        "2024-05-10 00:00:00.009930+00:00,2162,5\r\n"
        "2024-05-10 00:00:01.009930+00:00,2399,6\r\n"
    )
    assert read_trace(file).requests == (TraceRequest(0.0, 2162, 5), TraceRequest(1.0, 2399, 6))


@pytest.mark.parametrize(
    "head",
    [
        '"TIMESTAMP","ContextTokens","GeneratedTokens"',
        "TIMESTAMP , ContextTokens ,GeneratedTokens ",
        "\n  \n" + HEAD,
        "\ufeff" + HEAD,
    ],
)
@pytest.mark.parametrize("rows", [ROWS, ROWS.replace(",", " , "), ROWS + "\n  \n   "])
def test_blanks_quotes_and_byte_order_marks_in_a_csv_do_not_matter(
    file: Path, head: str, rows: str
) -> None:
    file.write_text(AZURE)
    plain = read_trace(file).requests
    file.write_text(f"{head}\n{rows}", encoding="utf-8")
    assert read_trace(file).requests == plain


def test_line_numbers_count_blank_lines_too(file: Path) -> None:
    file.write_text("\n \n" + AZURE + "yesterday,1,2\n")
    with pytest.raises(BadTrace, match=r"line 7: 'yesterday' is not a time"):
        read_trace(file)


def test_columns_may_come_in_any_order_with_others_between(file: Path) -> None:
    file.write_text(
        'GeneratedTokens,Model,TIMESTAMP,ContextTokens,Model\n44,"x,y",2023-11-16 18:15:46,374,z\n'
    )
    assert read_trace(file).requests == (TraceRequest(0.0, 374, 44),)


def test_mooncake_requests_are_read_without_their_hash_ids(file: Path) -> None:
    file.write_text(MOONCAKE)
    assert read_trace(file).requests == (
        TraceRequest(0.0, 600, 3),
        TraceRequest(0.5005, 20, 1),
        TraceRequest(2.0, 1000, 5),
    )


@pytest.mark.parametrize("further", [{"type": "workflows"}, {"workflows": 3}])
def test_further_fields_of_a_request_do_not_make_it_a_workflow(
    file: Path, further: dict[str, object]
) -> None:
    row = {"timestamp": 1, "input_length": 2, "output_length": 3}
    file.write_text(f"{json.dumps(row | further)}\n{json.dumps(row)}\n")
    assert read_trace(file).requests == (TraceRequest(0.0, 2, 3),) * 2


@pytest.mark.parametrize("indent", [None, 1])
def test_workflows_are_detected_with_and_without_indentation(
    file: Path, indent: int | None
) -> None:
    document = {"timestamp": "2026-01-01", **json.loads(TREE)}
    file.write_text(json.dumps(document, indent=indent))
    (workflow,) = read_trace(file).workflows
    assert workflow.application == "tree_of_thoughts"


def test_deep_research_keeps_its_stages(file: Path) -> None:
    file.write_text(DEEP_RESEARCH)
    first, second = read_trace(file).workflows
    assert [stage.calls for stage in first.stages] == [
        (Call(436, 99, step="generate_query"),),
        (Call(5, 6, step="web_research"), Call(7, 8, step="web_research")),
    ]
    assert first.application == second.application == "deep_research"


def test_a_call_of_n_samples_becomes_n_calls_that_share_their_prompt(file: Path) -> None:
    file.write_text(TREE)
    (workflow,) = read_trace(file).workflows
    assert workflow.application == "tree_of_thoughts"
    assert [stage.calls for stage in workflow.stages] == [
        (Call(170, 164, step="propose"),),
        (Call(365, 39, 365, 2, "value"),) * 3 + (Call(400, 40, 400, 3, "value"),) * 2,
    ]


@pytest.mark.parametrize(
    ("text", "longest"),
    [
        ("\n" + AZURE, LongestCall("line 3", 396, 109)),
        (MOONCAKE, LongestCall("line 1", 1000, 5)),
        (DEEP_RESEARCH, LongestCall("workflows[0]", 436, 99)),
        (TREE, LongestCall("workflows[0]", 400, 40)),
    ],
)
def test_the_longest_call_is_recorded_with_its_place(
    file: Path, text: str, longest: LongestCall
) -> None:
    file.write_text(text)
    assert read_trace(file).longest == longest


def tree(num_stages: int, *samples: int) -> str:
    """A workflow; each of its stages has one call for each of these numbers of samples."""
    calls = [{"in": 1, "out": 2, "n": each} for each in samples]
    return json.dumps({"workflows": [{"stages": [{"kind": "value", "calls": calls}] * num_stages}]})


def test_a_workflow_has_a_limit_on_stages_and_calls(file: Path) -> None:
    for largest in (tree(MAX_STAGES, 1), tree(MAX_CALLS // 512, 500, 12)):
        file.write_text(largest)
        assert len(read_trace(file).workflows) == 1
    file.write_text(tree(MAX_STAGES + 1, 1))
    with pytest.raises(BadTrace, match=r"workflows\[0\] has 257 stages, more than 256"):
        read_trace(file)
    file.write_text(tree(1, *[1000] * (MAX_CALLS // 1000), MAX_CALLS % 1000 + 1))
    with pytest.raises(BadTrace, match=r"workflows\[0\] has more than 2,048 calls"):
        read_trace(file)


def test_a_trace_keeps_its_own_times_or_is_scaled_to_the_given_rate(file: Path) -> None:
    file.write_text(AZURE)
    programs = load_trace(file)
    assert [each.arrival_s for each in programs] == pytest.approx([0.0, 4.314579, 10.0])
    assert [each.arrival_s for each in load_trace(file, window_s=5.0)] == pytest.approx(
        [0.0, 4.314579]
    )
    scaled = load_trace(file, rate_per_s=2.0)
    assert [each.arrival_s for each in scaled] == pytest.approx([0.0, 0.4314579, 1.0])
    assert len(load_trace(file, rate_per_s=2.0, window_s=0.5)) == 2
    with pytest.raises(InvalidWorkload, match=r"last only 1\.0 s"):
        load_trace(file, rate_per_s=2.0, window_s=2.0)
    assert [each.prompt_tokens for each in programs] == [374, 396, 10]


def test_kinds_are_drawn_from_the_given_ones_by_the_seed(file: Path) -> None:
    file.write_text(MOONCAKE)
    assert {each.kind for each in load_trace(file, kinds=[SloKind.BEST_EFFORT])} == {
        SloKind.BEST_EFFORT
    }
    (deadline, *_) = load_trace(file, kinds=[SloKind.DEADLINE], slo_scale=2.0)
    assert deadline.deadline_s == 40.0
    assert repr(load_trace(file, seed=3)) == repr(load_trace(file, seed=3))
    drawn = {each.kind for seed in range(20) for each in load_trace(file, seed=seed)}
    assert drawn == {SloKind.LATENCY, SloKind.DEADLINE}


def test_workflows_arrive_at_the_given_rate_and_all_once_before_any_again(file: Path) -> None:
    file.write_text(DEEP_RESEARCH)
    programs = load_trace(file, rate_per_s=5.0, window_s=20.0, seed=1)
    assert len(programs) == pytest.approx(100, abs=40)
    assert all(each.kind is SloKind.COMPOUND for each in programs)
    assert all(each.deadline_s == 20.0 * len(each.stages) for each in programs)
    for first, second in zip(programs[::2], programs[1::2], strict=False):
        assert {len(first.stages), len(second.stages)} == {1, 2}
    assert repr(programs) == repr(load_trace(file, rate_per_s=5.0, window_s=20.0, seed=1))


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"rate_per_s": 1.0},
        {"window_s": 1.0},
        {"rate_per_s": -1.0, "window_s": 1.0},
        {"rate_per_s": 1.0, "window_s": 1.0, "slo_scale": 0.0},
        {"rate_per_s": 1.0, "window_s": 1.0, "seed": -1},
        {"rate_per_s": 1.0, "window_s": 1.0, "kinds": ()},
        {"rate_per_s": 1.0, "window_s": 1.0, "kinds": (SloKind.COMPOUND,)},
    ],
)
def test_arguments_out_of_range_raise_a_named_error(
    file: Path, arguments: dict[str, object]
) -> None:
    file.write_text(DEEP_RESEARCH)
    with pytest.raises(InvalidWorkload):
        load_trace(file, **arguments)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it is empty"),
        ("\ufeff \n\n", "it is empty"),
        ("a,b,c\n1,2,3\n", "none of the known formats"),
        ("[1, 2]", "none of the known formats"),
        ("{}", "none of the known formats"),
        ('{"a": 1}\n{"a": 2}\n', "none of the known formats"),
        ('{"a":\n', "not JSON"),
        (AZURE_HEAD, "no requests"),
        (AZURE_HEAD.strip() + ",ContextTokens\n", "line 1: 2 columns are named ContextTokens"),
        (AZURE_HEAD + "2023-11-16 18:15:46.68,374\n", "line 2.*columns"),
        (AZURE_HEAD + "2023-11-16 18:15:46.68,374,1,2\n", "line 2.*columns"),
        (AZURE_HEAD + "yesterday,374,44\n", "line 2.*is not a time"),
        (AZURE_HEAD + "2023-11-16 18:15:46.68,-3,44\n", "line 2.*tokens"),
        (AZURE_HEAD + "2023-11-16 18:15:46.68,3,4.5\n", "line 2.*tokens"),
        (AZURE_HEAD + "2023-11-16 18:15:46.68,3,9999999\n", "line 2.*tokens"),
        (AZURE_HEAD + '2023-11-16 18:15:46.68,3,"4\n', "after line 1"),
        (AZURE_HEAD + "2023-11-16 18:15:46.68,3,32769\n", "line 2: an answer's.* 0 to 32,768"),
        ('{"timestamp": 1, "input_length": 2, "output_length": 40000}', "0 to 32,768.*40000"),
        (
            '{"workflows": [{"stages": [{"kind": "a", "calls": [{"in": 1, "out": 40000}]}]}]}',
            r"calls\[0\]\.out: an answer's",
        ),
        (MOONCAKE + "{oops\n", "line 5.*not JSON"),
        (MOONCAKE + "[]\n", "line 5.*object"),
        ('{"timestamp": 1, "input_length": 2}', "line 1.*output_length"),
        ('{"timestamp": -1, "input_length": 2, "output_length": 3}', "line 1.*timestamp"),
        ('{"timestamp": NaN, "input_length": 2, "output_length": 3}', "line 1.*timestamp"),
        ('{"timestamp": true, "input_length": 2, "output_length": 3}', "line 1.*timestamp"),
        ('{"timestamp": 1, "input_length": "2", "output_length": 3}', "input_length"),
        ('{"workflows": []}', "no workflows"),
        ('{"workflows": 3}', "workflows.*wrong type"),
        ('{"workflows": [{"stages": []}]}', r"workflows\[0\] has no calls"),
        ('{"workflows": [{"stages": [{"calls": []}]}]}', "must have a state or a kind"),
        (
            '{"workflows": [{"stages": [{"kind": "a", "calls": [{"in": 1}]}]}]}',
            r"stages\[0\]\.calls\[0\].*out",
        ),
        (
            '{"workflows": [{"stages": [{"kind": "a", "calls": [{"in": 1, "out": 1, "n": 0}]}]}]}',
            r"calls\[0\]\.n must",
        ),
        ('{"workflows": ' + "[" * 100_000, "not JSON"),
    ],
)
def test_the_error_of_a_malformed_file_names_the_file_the_reason_and_the_place(
    file: Path, text: str, reason: str
) -> None:
    file.write_text(text, encoding="utf-8")
    with pytest.raises(BadTrace, match=reason) as caught:
        read_trace(file)
    assert str(file) in str(caught.value)


def test_the_error_of_an_unreadable_file_names_the_file(file: Path) -> None:
    with pytest.raises(TraceMissing, match="trace"):
        read_trace(file)
    with pytest.raises(BadTrace, match="directory"):
        read_trace(file.parent)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (gzip.compress(AZURE.encode()), "it is compressed: gunzip it first"),
        (b"PK\x03\x04", "it is compressed: unzip it first"),
        (AZURE.encode("utf-16"), "line 1: it is UTF-16 text, not UTF-8"),
        (AZURE.encode("utf-16-le"), "line 1: it is UTF-16 text, not UTF-8"),
        (AZURE.encode() + b"\xe9", r"line 5: it is not UTF-8 text \(byte 0xe9"),
        (b"\xef\xbb\xbfa\r\n\xe9", "line 2: it is not UTF-8 text"),
        (b"a\rb\r\xe9", "line 3: it is not UTF-8 text"),
    ],
)
def test_the_error_of_a_file_that_is_not_utf_8_says_what_to_do(
    file: Path, content: bytes, reason: str
) -> None:
    file.write_bytes(content)
    with pytest.raises(BadTrace, match=reason):
        read_trace(file)


@pytest.mark.parametrize("character", ["\u2028", "\u2029", "\x85"])
def test_only_a_line_feed_ends_a_line_of_json(file: Path, character: str) -> None:
    line = '{{"timestamp": {}, "input_length": 2, "output_length": 3, "note": "a{}b"}}\r\n'
    lines = [line.format(stamp, character) for stamp in (0, 7000)]
    file.write_bytes("".join([*lines, "\r\n"]).encode())
    assert read_trace(file).requests == (TraceRequest(0.0, 2, 3), TraceRequest(7.0, 2, 3))


def test_a_pipe_is_rejected_before_it_is_read(file: Path) -> None:
    os.mkfifo(file)
    with pytest.raises(BadTrace, match="pipe or a device: save it to a file first"):
        read_trace(file)


def test_a_trace_with_another_digest_is_rejected(file: Path) -> None:
    file.write_text(AZURE)
    digest = read_trace(file).digest
    assert read_trace(file, digest=digest) == read_trace(file)
    file.write_text(AZURE[:-8])  # the digest is checked before the format
    with pytest.raises(BadTrace, match="changed while in use"):
        read_trace(file, digest=digest)


def shared(name: str) -> Path:
    path = DATA / name
    if not path.exists():
        pytest.skip(f"no ../shared/data/{name} beside this checkout")
    return path


def test_the_shared_azure_trace_is_read_completely() -> None:
    requests = read_trace(shared("traces/AzureLLMInferenceTrace_conv.csv")).requests
    assert len(requests) == 19_366
    assert requests[-1].arrival_s == pytest.approx(3501.7, abs=0.1)


@pytest.mark.parametrize(
    ("name", "count", "prompt_tokens", "output_tokens"),
    [
        ("agentic/jitserve_deepresearch_sample.json", 64, 9771.9, 2421.0),
        ("agentic/tot_game24_dag.json", 100, None, 5478),
    ],
)
def test_the_shared_workflows_are_read_completely(
    name: str, count: int, prompt_tokens: float | None, output_tokens: float
) -> None:
    workflows = read_trace(shared(name)).workflows
    assert len(workflows) == count
    calls = [call for each in workflows for stage in each.stages for call in stage.calls]
    assert sum(call.output_tokens for call in calls) / count == pytest.approx(
        output_tokens, rel=0.01
    )
    if prompt_tokens is not None:
        total = sum(call.prompt_tokens for call in calls)
        assert total / count == pytest.approx(prompt_tokens, rel=0.01)
