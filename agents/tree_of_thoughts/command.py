"""Tree of Thoughts as a command: `orchestrate run tree-of-thoughts`."""

from __future__ import annotations

import re

from agents.pipeline import Pipeline
from agents.tree_of_thoughts.board_svg import board_svg
from agents.tree_of_thoughts.pipeline import tree_of_thoughts
from agents.tree_of_thoughts.solution import Solution
from agents.tree_of_thoughts.tasks.table import check_puzzle
from agents.tree_of_thoughts.tree_svg import tree_svg
from agents.tree_of_thoughts.tree_text import tree_lines
from orchestrator import RunResult
from orchestrator.durations import shown
from serving.generation import EngineInfo
from store.printable_text import one_line, printable


def to_text(result: RunResult[Solution], info: EngineInfo) -> str:
    """The answer, then the tree, as Markdown."""
    solution = result.value
    end = "solved" if solution.solved else "not solved: the best so far"
    ended = f"{prose(f'No solution was found: {solution.ended}.')}\n\n" if solution.ended else ""
    lines = "\n".join(tree_lines(solution.tree))
    return printable(
        f"# {solution.task}: {end}\n\n{prose(solution.goal)}\n\n"
        f"{block(solution.answer)}\n\n## Search\n\n{ended}{block(lines)}\n\n---\n\n"
        f"Run `{result.run_id}`: {shown(result.elapsed_s)}; {solution.expanded} of "
        f"{len(solution.tree)} thoughts expanded, {solution.merged} merged; model {info.model}"
        f"{f' ({info.caveat})' if info.caveat else ''}, engine {info.name}.\n"
    )


def block(text: str) -> str:
    """A text as a fenced block, whose fence is longer than any in the text."""
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", text))])
    return f"{fence}text\n{text}\n{fence}"


def prose(text: str) -> str:
    """A user's text as a paragraph, without markup that would change what follows."""
    return re.sub(r"[\\`<\[~]|^[#>+=-]", r"\\\g<0>", one_line(text))


def pictures(solution: Solution) -> dict[str, str]:
    """The tree, and the board if there is one, as SVG: end of the file's name -> content."""
    found = {"-tree.svg": tree_svg(solution.tree)}
    return found | ({"-board.svg": board_svg(solution.board)} if solution.board else {})


PIPELINE = Pipeline(
    flow=tree_of_thoughts,
    argument="puzzle",
    example='orchestrate run tree-of-thoughts "4 5 6 10" --beam 5 --deadline 30s --out solution',
    check=lambda arguments: check_puzzle(arguments["puzzle"]),
    to_markdown=to_text,
    to_files=lambda result, info: pictures(result.value),
    file_name="solution",
)
