"""The example's crossword: how well a small model judges words by clues, and the search with it.

    python -m benchmarks.crossword [--json] [--deadline 60]

First, for each clue, the rank of the right word among all words of the list: by how much more
probable it is after its clue than without one (as the search does it), and by lettered choices of
20 words each. Then the search with the default model and with the random model.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from agents.tree_of_thoughts.judging import Fits
from agents.tree_of_thoughts.pipeline import tree_of_thoughts
from agents.tree_of_thoughts.setbacks import Setbacks
from agents.tree_of_thoughts.tasks.crossword import Crossword, claim
from agents.tree_of_thoughts.tasks.task_file import (
    CrosswordFile,
    parse_task_file,
    read_task_file,
)
from benchmarks.command import parser_of, print_result
from orchestrator import Settings, choose, flow, gather, open_runtime
from serving.engine.setup.config import RANDOM_MODEL, default_model
from serving.generation import MAX_CHOICES

FILE = Path(__file__).parent.parent / "examples" / "crossword.toml"
ACROSS = ("lapse", "arena", "sonar", "email", "rally")
DOWN = ("laser", "aroma", "penal", "snail", "early")


@flow
async def ranks() -> dict[str, list[int]]:
    """Way of judging -> the rank of the right word for each clue, from 1."""
    task, words = _example()
    fits, by_fit, by_letter = Fits(Setbacks()), list[int](), list[int]()
    groups = [words[at : at + MAX_CHOICES] for at in range(0, len(words), MAX_CHOICES)]
    for slot, right in zip(task.slots, ACROSS + DOWN, strict=True):
        claims = {word: claim(slot, word) for word in words}
        await fits.ask(claims.values())
        by_fit.append(_rank({word: fits.of(each) for word, each in claims.items()}, right))
        prompt = f"Crossword clue: {slot.clue}\n\nWhich word is meant?"
        choices = await gather(*(choose(prompt, group) for group in groups))
        scores = {
            word: score
            for group, choice in zip(groups, choices, strict=True)
            for word, score in zip(group, choice.logprobs, strict=True)
        }
        by_letter.append(_rank(scores, right))
    return {"after its clue": by_fit, "by letter": by_letter}


def _example() -> tuple[Crossword, list[str]]:
    found = parse_task_file(read_task_file(str(FILE)), str(FILE))
    assert isinstance(found, CrosswordFile), "the example is a crossword"
    return Crossword(found.across, found.down, found.words), found.words


def _rank(scores: dict[str, float], right: str) -> int:
    return 1 + sum(score > scores[right] for score in scores.values())


async def measured(model: str, deadline_s: float) -> dict[str, object]:
    """The search with one model, and of the default model the ranks."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'runs.db'}"
        async with open_runtime(Settings(store=url, model=model, fit_every=0)) as runtime:
            await runtime.engine.start()
            search = tree_of_thoughts.options(deadline=deadline_s)
            result = await runtime.run(search, str(FILE))
            async with runtime.store.reading() as tx:
                calls = await tx.calls.of_run(result.run_id)
            letters = zip("".join(result.value.board), "".join(ACROSS), strict=True)
            row: dict[str, object] = {
                "model": model,
                "filled": result.value.solved,
                "right_letters": sum(found == right for found, right in letters),
                "expanded": result.value.expanded,
                "calls": len(calls),
                "seconds": round(result.elapsed_s, 2),
            }
            if model != RANDOM_MODEL:
                row["ranks"] = (await runtime.run(ranks)).value
            return row


def table(rows: list[dict[str, object]]) -> str:
    """The figures as text."""
    lines = []
    for row in rows:
        of_words = row.pop("ranks", {})
        assert isinstance(of_words, dict), "ranks by way"
        lines.append("  ".join(f"{name} {value}" for name, value in row.items()))
        lines += [f"  rank of the right word {way}: {found}" for way, found in of_words.items()]
    return "\n".join(lines)


def main() -> int:
    """Measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--deadline", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(asyncio.run(measured(options.one, options.deadline))))
        return 0
    rows = []
    for model in (default_model(), RANDOM_MODEL):  # an embedded engine has the process to itself
        command = [sys.executable, "-m", "benchmarks.crossword", "--one", model]
        command += ["--deadline", str(options.deadline)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        rows.append(json.loads(done.stdout.splitlines()[-1]))
    print_result(rows, table([dict(row) for row in rows]), as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
