"""What is advised on a call: its length, and the stages that follow in its program."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.analyzer.advisor import Advisor
from orchestrator.learning.knowledge import Knowledge
from patterns.library import KeptPattern, PatternLibrary
from serving.analyzer.analyzer import MIN_STEP_CALLS, RequestAnalyzer
from serving.slo import Slo, SloKind, TagValue, from_tags
from tests.unit.orchestrator.analyzer.served_calls import arrival, ended

PLAN, WORK = 20, 200


class Served:
    """Programs of two stages, one after the other, with an advisor."""

    def __init__(self, known: Knowledge | None) -> None:
        self.advisor = Advisor(lambda model: known, idle_s=1.0)
        self.now_s = 0.0
        self._number = 0

    def call(self, program: str, shape: str, tokens: int) -> Slo:
        """Make a call of a program with a deadline; returns what it was advised."""
        self._number += 1
        call = str(self._number)
        tags = self.advisor.arrived(
            arrival(call, self.now_s, program=program, shape=shape, program_deadline_s=60.0)
        ).tags
        self.now_s += tokens / 100
        self.advisor.ended(ended(call, self.now_s, tokens))
        return from_tags(tags)

    def program(self, name: str) -> tuple[Slo, Slo]:
        plan = self.call(name, "plan", PLAN)
        self.now_s += 1.0
        return plan, self.call(name, "work", WORK)


def library_of(served: Served, count: int) -> PatternLibrary:
    for number in range(count):
        served.program(f"past{number}")
    patterns = [
        KeptPattern(key, finished.program.graph().stages, recorded_at_s=float(key))
        for key, finished in enumerate(served.advisor.close())
    ]
    return PatternLibrary(tuple(patterns))


def length_of(tags: Mapping[str, TagValue]) -> float:
    length = from_tags(tags).length
    assert length is not None
    return length.upper(0.5)


def test_nothing_is_advised_before_anything_is_known() -> None:
    advisor = Advisor(lambda model: None, idle_s=1.0)
    assert advisor.arrived(arrival("a", 0.0, program_deadline_s=5.0)).tags == {}
    advisor.ended(ended("a", 1.0))
    assert len(advisor.close()) == 1


def test_lengths_are_learned_by_user_and_shape() -> None:
    known = Knowledge("served:m")
    advisor = Advisor(lambda model: known, idle_s=1.0)
    for number in range(MIN_STEP_CALLS):
        for user, tokens in (("ann", 10), ("bob", 100)):
            call = f"{user}{number}"
            advisor.arrived(arrival(call, float(number), user=user))
            advisor.ended(ended(call, number + 0.5, tokens))
    assert length_of(advisor.arrived(arrival("x", 50.0, user="ann")).tags) == 10
    assert length_of(advisor.arrived(arrival("y", 50.0, user="bob")).tags) == 100
    assert advisor.arrived(arrival("z", 50.0, user="bob", shape="other")).tags == {}


def test_a_program_without_past_ones_has_its_deadline_and_no_future() -> None:
    plan, work = Served(Knowledge("served:m")).program("p")
    assert plan.kind is SloKind.COMPOUND
    assert (plan.program, plan.stage, plan.final_s, plan.future) == ("p", 0, 60.0, None)
    assert (work.stage, work.final_s) == (2, 60.0 - PLAN / 100 - 1.0)


def test_the_stages_to_come_are_those_of_past_programs_that_began_alike() -> None:
    library = library_of(Served(Knowledge("served:m")), 12)
    served = Served(Knowledge("served:m", library, RequestAnalyzer()))
    plan, work = served.program("p")
    assert plan.future is not None
    assert plan.future.calls == 1.0
    assert abs(plan.future.decode_tokens - WORK) < 1e-6
    assert abs(plan.future.tool_s - 1.0) < 1e-6
    assert plan.deadline_s is not None
    assert plan.deadline_s < 60.0 * 0.2  # its share: 0.2 of 3.2 seconds
    assert work.future is not None
    assert work.future.calls == 0.0
    [finished] = served.advisor.close()
    assert abs(sum(finished.uses.values()) - 1.0) < 1e-6


def test_a_program_that_began_otherwise_has_no_future() -> None:
    library = library_of(Served(Knowledge("served:m")), 3)
    served = Served(Knowledge("served:m", library, RequestAnalyzer()))
    assert served.call("p", "another", 9).future is None


def test_an_aborted_call_teaches_nothing() -> None:
    known = Knowledge("served:m")
    advisor = Advisor(lambda model: known, idle_s=1.0)
    for number in range(2 * MIN_STEP_CALLS):
        advisor.arrived(arrival(str(number), float(number)))
        advisor.ended(ended(str(number), number + 0.5, is_complete=False))
    assert advisor.arrived(arrival("x", 50.0)).tags == {}


def test_a_call_with_invalid_features_gets_no_length() -> None:
    advisor = Advisor(lambda model: Knowledge("served:m"), idle_s=1.0)
    assert advisor.arrived(arrival("a", 0.0, words="00")).tags == {}
    advisor.ended(ended("a", 1.0))
    [finished] = advisor.finished(5.0)
    assert finished.program.id == "a"
