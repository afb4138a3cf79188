"""Which calls belong together, and in which stages."""

from __future__ import annotations

from orchestrator.analyzer import programs as module
from orchestrator.analyzer.programs import CLIENT, MAX_CALLS_BY_USER, Latest, Programs
from tests.unit.orchestrator.analyzer.served_calls import arrival, ended


def of(programs: Programs, call: str, at_s: float, **fields: object) -> str:
    """The id of the program of a call that arrives, which is that of its first call."""
    return programs.arrived(arrival(call, at_s, **fields))[0].id


def test_a_header_names_a_program_of_its_user() -> None:
    programs = Programs(idle_s=30)
    assert of(programs, "a", 0, program="p") == "a"
    assert of(programs, "b", 1, program="p") == "a"
    assert of(programs, "c", 1, program="q") == "c"
    assert of(programs, "d", 1, program="p", user="other") == "d"


def test_a_response_continues_the_program_of_the_former_one() -> None:
    programs = Programs(idle_s=30)
    of(programs, "a", 0)
    programs.ended(ended("a", 1, answer="resp_1_0"))
    assert of(programs, "b", 2, previous="resp_1") == "a"
    assert of(programs, "c", 2, previous="resp_9") == "c"


def test_a_prompt_continues_the_program_of_the_prompt_that_it_contains() -> None:
    programs = Programs(idle_s=30)
    of(programs, "a", 0, links=("1", "2"))
    of(programs, "b", 0, links=("1", "9"))
    assert of(programs, "c", 1, links=("1", "2", "3", "4")) == "a"
    assert of(programs, "d", 2, links=("1", "2", "3", "4", "5")) == "a"
    # What all prompts begin with is no whole prompt.
    assert of(programs, "e", 2, links=("1", "7")) == "e"


def test_a_prompt_of_two_programs_tells_nothing() -> None:
    programs = Programs(idle_s=30)
    of(programs, "a", 0, links=("1", "2"))
    assert of(programs, "b", 0, links=("1", "2")) == "b"
    assert of(programs, "c", 1, links=("1", "2", "3")) == "c"
    assert of(programs, "d", 2, links=("1", "2")) == "d"
    assert of(programs, "e", 3, links=("1", "2", "4")) == "e"


def test_no_call_joins_a_program_of_another_user_or_a_prompt_of_another_model() -> None:
    programs = Programs(idle_s=30)
    of(programs, "a", 0, user="ann", end_user="customer", links=("1", "2"))
    programs.ended(ended("a", 1, answer="resp_1_0"))
    assert of(programs, "b", 2, user="bob", end_user="customer") == "b"
    assert of(programs, "c", 2, user="bob", previous="resp_1") == "c"
    assert of(programs, "d", 2, user="bob", links=("1", "2", "3")) == "d"
    assert of(programs, "e", 2, user="ann", model="other", links=("1", "2", "3")) == "e"
    assert of(programs, "f", 2, user="ann", links=("1", "2", "3")) == "a"


def test_a_user_goes_on_with_the_last_program_unless_that_is_running() -> None:
    programs = Programs(idle_s=30)
    of(programs, "a", 0, end_user="ann")
    assert of(programs, "b", 1, end_user="ann") == "b"
    programs.ended(ended("b", 2))
    assert of(programs, "c", 3, end_user="ann") == "b"
    assert of(programs, "d", 3) == "d"


def test_a_user_begins_a_new_program_after_the_deadline_or_many_calls() -> None:
    programs = Programs(idle_s=30)
    of(programs, "a", 0, end_user="ann", program_deadline_s=5.0)
    programs.ended(ended("a", 1))
    assert of(programs, "b", 5, end_user="ann", program_deadline_s=5.0) == "a"
    programs.ended(ended("b", 6))
    assert of(programs, "c", 7, end_user="ann", program_deadline_s=5.0) == "c"
    ids = []
    for number in range(MAX_CALLS_BY_USER + 1):
        ids.append(of(programs, str(number), 8 + number, end_user="bob"))
        programs.ended(ended(str(number), 8.5 + number))
    assert ids == ["0"] * MAX_CALLS_BY_USER + [str(MAX_CALLS_BY_USER)]


def test_a_call_waits_for_the_complete_answers_before_it() -> None:
    programs = Programs(idle_s=30)
    stages = {}
    for call, at_s in (("a", 0.0), ("b", 0.1)):
        stages[call] = programs.arrived(arrival(call, at_s, program="p"))[1].stage
    programs.ended(ended("a", 1))
    stages["c"] = programs.arrived(arrival("c", 2, program="p"))[1].stage
    programs.ended(ended("b", 3))
    programs.ended(ended("c", 4, is_complete=False))
    stages["d"] = programs.arrived(arrival("d", 5, program="p"))[1].stage
    assert stages == {"a": 0, "b": 0, "c": 1, "d": 1}


def test_the_graph_has_what_the_client_did_between_the_stages() -> None:
    programs = Programs(idle_s=30)
    program, _ = programs.arrived(arrival("a", 0, program="p", shape="plan"))
    programs.arrived(arrival("b", 0.5, program="p", shape="plan"))
    programs.ended(ended("a", 2, 30))
    programs.ended(ended("b", 3, 40))
    programs.arrived(arrival("c", 7, program="p", shape="work"))
    programs.ended(ended("c", 9, 50))
    first, pause, second, last = program.graph(until_s=10).stages
    assert [call.identity for call in first.calls] == ["m:plan"]
    assert (first.output_tokens, first.seconds) == (70, 2.5)
    assert [call.identity for call in pause.calls] == [CLIENT]
    assert pause.seconds == 4.0
    assert (second.output_tokens, second.seconds) == (50, 2.0)
    assert last.seconds == 1.0
    assert len(program.graph().stages) == 3


def test_a_program_ends_when_it_was_idle() -> None:
    programs = Programs(idle_s=30)
    of(programs, "a", 0, program="p")
    of(programs, "b", 0, program="q")
    programs.ended(ended("a", 10))
    assert programs.idle(40) == []
    assert [program.id for program in programs.idle(41)] == ["a"]
    # A new call of that name is of a new program; a running one is not idle.
    assert of(programs, "c", 42, program="p") == "c"
    assert [program.id for program in programs.idle(4000)] == ["b", "c"]
    assert programs.ended(ended("b", 4001)) is None


def test_close_takes_out_all() -> None:
    programs = Programs(idle_s=30)
    of(programs, "a", 0)
    assert [program.id for program in programs.close()] == ["a"]
    assert programs.close() == []


def test_the_deadline_counts_from_the_first_call_or_from_now() -> None:
    programs = Programs(idle_s=30)
    program, _ = programs.arrived(arrival("a", 100, program="p", program_deadline_s=20))
    programs.ended(ended("a", 105))
    programs.arrived(arrival("b", 106, program="p", program_deadline_s=20))
    assert program.deadline_at_s == 120
    programs.arrived(arrival("c", 107, program="p", final_s=9))
    assert program.deadline_at_s == 116


def test_programs_are_limited(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(module, "MAX_PROGRAMS", 2)
    programs = Programs(idle_s=30)
    for number in range(4):
        of(programs, str(number), number)
    assert [program.id for program in programs.idle(4)] == ["0", "1"]


def test_the_latest_are_kept() -> None:
    latest: Latest[int] = Latest(2)
    for key in "abac":
        latest.set(key, ord(key))
    assert (latest.get("a"), latest.get("b"), latest.get("c")) == (97, None, 99)
