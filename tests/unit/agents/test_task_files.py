"""Task files: what they may say, and what is said of those that are wrong."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.tree_of_thoughts.errors import InvalidTask
from agents.tree_of_thoughts.search import Status
from agents.tree_of_thoughts.tasks.crossword import Crossword
from agents.tree_of_thoughts.tasks.expression import Expression, written_out
from agents.tree_of_thoughts.tasks.free_text import FreeText, TextCheck
from agents.tree_of_thoughts.tasks.table import check_puzzle, task_in, task_of
from agents.tree_of_thoughts.tasks.task_file import MAX_BYTES, read_task_file
from cli.failures import ExitCode, exit_code_of
from tests.places import ROOT
from tests.unit.agents.tree_of_thoughts_samples import CROSSWORD, TEXT, task_path

EXAMPLES = sorted((ROOT / "examples").glob("*.toml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_each_example_is_a_task(path: Path) -> None:
    check_puzzle(str(path))


def test_the_kinds_of_files_are_crosswords_and_texts() -> None:
    crossword, text = task_in(CROSSWORD, "c.toml"), task_in(TEXT, "t.toml")
    assert isinstance(crossword, Crossword)
    assert isinstance(text, FreeText)
    assert (text.goal, text.start, text.max_depth) == ("Write a story.", "It rained.", 3)
    assert EXAMPLES


GOOD = 'kind = "text"\ngoal = "Write."\nsteps = 2\n'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the file is empty"),
        ("# only a comment", "the file is empty"),
        ("kind = ", "not valid TOML"),
        ('goal = "x"', "kind is missing"),
        ('kind = "poem"', "not 'poem'"),
        ('kind = "text"\nsteps = 2', "goal: Field required"),
        ('kind = "text"\ngoal = " "\nsteps = 2', "goal: "),
        ('kind = "text"\ngoal = "x"\nsteps = "two"', "steps: Input should be a valid integer"),
        ('kind = "text"\ngoal = "x"\nsteps = 0', "steps: "),
        ('kind = "text"\ngoal = 7\nsteps = 2', "goal: Input should be a valid string, not 7"),
        (GOOD + "step = 3", "step is no key"),
        (GOOD + 'moves = ["a"]', "too few"),
        (GOOD + 'moves = ["a", "b\\nc"]', "moves.1: give one line"),
        (GOOD + '[check]\npattern = "("', "check.pattern: not a regular expression"),
        (GOOD + f"[check]\npattern = '{'(' * 400}{')' * 400}'", "check.pattern: not a regular"),
        (GOOD + f"[check]\npattern = '{'(' * 3000}'", "check.pattern: a pattern has at most 1,000"),
        (GOOD + "[check]\npattern = 'a{99999999999999}'", "check.pattern: not a regular"),
        (GOOD + "[check]\npattern = '((a{900}){900}){900}'", "check.pattern: the pattern repeats"),
        (GOOD + "[check]\npattern = '(?x)( a {900} ) {900}'", "check.pattern: not a regular"),
        (GOOD + f"[check]\npattern = '{'(' * 60}a{')+' * 60}'", "check.pattern: the pattern rep"),
        (GOOD + "[check]\npattern = '(?x:( a {900} ) {900})'", "check.pattern: not a regular"),
        (GOOD.replace("2", "9" * 5000), "not valid TOML"),
        (GOOD + f"[check]\nmin_characters = {'9' * 4000}", "check.min_characters: "),
        (GOOD + f"moves = {'[' * 5000}", "not valid TOML: it is nested too deeply"),
        (GOOD + "[check]\nlength = 3", "check.length is no key"),
        (GOOD + "[check]\nmin_characters = 9\nmax_characters = 3", "above max_characters"),
        (CROSSWORD.replace("lapse", "lap5e"), "words.0: a word has 5 letters"),
        (CROSSWORD.replace("lapse", "lapses"), "words.0: a word has 5 letters"),
        (CROSSWORD.replace("'A race'", "''"), "across.4: give one line"),
        (CROSSWORD.replace(", 'A race'", ""), "across: List should have at least 5 items"),
        (
            CROSSWORD.partition("words")[0] + f"words = '{'abcde ' * 1001}'",
            "words: List should",
        ),
        (CROSSWORD + "grid = 5", "grid is no key"),
    ],
)
def test_a_wrong_file_is_refused_with_its_key_and_the_rule(text: str, reason: str) -> None:
    with pytest.raises(InvalidTask) as refused:
        task_in(text, "wrong.toml")
    assert "wrong.toml" in str(refused.value)
    assert reason in str(refused.value)
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize("pattern", [r"((a|aa)+|b)*\n.*(a|aa)+$", r"(a|b|ab)*\n(a|aa)+"])
def test_a_pattern_that_takes_too_much_time_is_refused_in_less_than_a_second(pattern: str) -> None:
    check = TextCheck(pattern=Expression(pattern))
    began_s = time.monotonic()
    with pytest.raises(InvalidTask, match=r"check\.pattern takes more than") as refused:
        check.is_valid(f"{'a' * 2000}\n{'a' * 2000}c")
    assert time.monotonic() - began_s < 1
    assert exit_code_of(refused.value) is ExitCode.BAD_INPUT


@given(st.text("ab(){}|*+?,[]\\^$.19\n", max_size=60))
def test_any_pattern_is_read_and_matched_as_by_python_or_refused(pattern: str) -> None:
    with suppress(ValueError):
        expression = Expression(pattern)
        with suppress(InvalidTask):
            for text in ("", "a", "ab\nab", "1" * 30):
                expression.matches(text)


@pytest.mark.parametrize(
    ("pattern", "size"), [("abc", 3), (r"a{3}", 4), (r"(ab){1,10}", 33), (r"[(]{2}\(+", 5)]
)
def test_a_pattern_is_measured_with_its_repetitions(pattern: str, size: int) -> None:
    assert written_out(pattern) == size


@pytest.mark.parametrize(("text", "is_valid"), [("one\ntwo\nthree\n", True), ("one\n", False)])
def test_a_pattern_matches_the_whole_text(text: str, is_valid: bool) -> None:
    assert TextCheck(pattern=Expression(r"(.{1,80}\n){3}")).is_valid(text) == is_valid


@given(st.text(max_size=200))
def test_any_text_is_a_task_or_refused(text: str) -> None:
    with suppress(InvalidTask):
        task_in(text, "any.toml")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "No such file"),
        (b"\x00\x01\x02", "not valid TOML"),
        (b"kind = '\xff'", "not UTF-8 text, at byte 8"),
        (b"#" * (MAX_BYTES + 1), "more than 100,000 bytes"),
    ],
)
def test_a_file_that_is_no_text_is_refused(
    tmp_path: Path, content: bytes | None, reason: str
) -> None:
    path = tmp_path / "task.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidTask, match=reason):
        check_puzzle(str(path))


def test_a_folder_is_no_task_file(tmp_path: Path) -> None:
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(InvalidTask, match="Is a directory"):
        read_task_file(str(tmp_path / "folder.toml"))


def test_a_byte_order_mark_and_spaces_around_the_path_do_no_harm(tmp_path: Path) -> None:
    path = task_path(tmp_path, "\ufeff" + TEXT)
    check_puzzle(f" {path} ")


@pytest.mark.parametrize(
    "puzzle",
    ["twenty-four", "24", "crossword", "4 5 6 x" * 1000, "² 3 4", "٤ 5", "1000000 1", "9" * 5000],
)
def test_a_text_that_is_no_task_is_refused_in_a_short_message(puzzle: str) -> None:
    with pytest.raises(InvalidTask, match="task file") as refused:
        task_of(puzzle)
    assert len(str(refused.value)) < 300


def test_a_text_grows_by_a_line_and_its_last_line_decides() -> None:
    check = TextCheck(contains=("sun",), excludes=("snow",), max_characters=50)
    task = FreeText("Write.", start="It rained.", steps=2, check=check)
    first = task.step(task.start, "  Then  it stopped.\nAnd more")
    assert first is not None
    assert (first.move, first.status) == ("Then it stopped.", Status.OPEN)
    solved = task.step(first.state, "The sun!")
    assert solved is not None
    assert solved.status is Status.SOLVED
    missed = task.step(first.state, "The moon")
    assert missed is not None
    assert missed.status is Status.DEAD
    cut_off = task.step(task.start, 'He said: "It is 5 o\'clock." Then he l')
    assert cut_off is not None
    assert cut_off.move == 'He said: "It is 5 o\'clock."'
    assert task.answer([first, solved]) == "It rained.\nThen it stopped.\nThe sun!"
    assert [task.step(task.start, text) for text in ("", "It rained.", "Snow!", "x" * 60)] == [
        None
    ] * 4


def test_listed_moves_are_taken_once_each() -> None:
    task = FreeText("Choose.", steps=2, moves=["a", "b", "c"])
    first = list(task.moves(task.start) or [])
    assert [step.move for step in first] == ["a", "b", "c"]
    second = list(task.moves(first[1].state) or [])
    assert [step.move for step in second] == ["a", "c"]
    assert all(step.status is Status.SOLVED for step in second)


@pytest.mark.parametrize(
    ("check", "text", "is_valid"),
    [
        (TextCheck(contains=("Sun",)), "a sunny day", False),
        (TextCheck(contains=("Sun",)), "the sun.", True),
        (TextCheck(min_characters=5), "four", False),
        (TextCheck(min_characters=4), "four", True),
        (TextCheck(max_characters=3), "four", False),
    ],
)
def test_a_check_is_of_words_and_lengths(check: TextCheck, text: str, is_valid: bool) -> None:
    assert check.is_valid(text) == is_valid
