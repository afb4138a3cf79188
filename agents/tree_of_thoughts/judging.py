"""What the model is asked in a search: proposals, votes, values, and how well a word fits.

Each question is a recorded step, so that a resumed search asks for nothing twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from agents.tree_of_thoughts import prompts
from agents.tree_of_thoughts.search import Continuation
from agents.tree_of_thoughts.setbacks import Setbacks
from orchestrator import choose, gather, llm, step
from serving.errors import InvalidRequest
from serving.generation import MAX_CHOICES

PROPOSALS = 5
"""Steps that the model is asked for from one state, if the task cannot list them."""

PROPOSAL_TOKENS = 60

PROPOSAL_PENALTY = 1.15
"""Repetition penalty: without it a small model repeats the text that it should go on with."""

LEAST_LOGPROB = -30.0
"""Stands for a log-probability of minus infinity."""


@step
async def propose(goal: str, described: str, how: str, attempt: int = 0) -> list[str]:
    """The model's next steps from a state, each once; each attempt has seeds of its own."""
    answers = await gather(
        *(
            llm(
                prompts.propose_prompt(goal, described, how),
                system=prompts.SYSTEM,
                max_tokens=PROPOSAL_TOKENS,
                temperature=0.0 if seed == 0 else 0.7,
                repetition_penalty=PROPOSAL_PENALTY,
                seed=seed,
                stop=["\n"],
            )
            for seed in range(attempt * PROPOSALS, (attempt + 1) * PROPOSALS)
        )
    )
    return list(dict.fromkeys(answer.strip() for answer in answers if answer.strip()))


@step
async def votes(goal: str, described: str, moves: list[str]) -> list[float]:
    """How likely the model is to choose each of some moves; they sum to 1.

    More moves than a call takes are put to it in groups; each counts in its group.
    """
    groups = [moves[at : at + MAX_CHOICES] for at in range(0, len(moves), MAX_CHOICES)]
    prompt = prompts.vote_prompt(goal, described)
    choices = await gather(*(choose(prompt, group, system=prompts.SYSTEM) for group in groups))
    return [
        probability * len(group) / len(moves)
        for group, choice in zip(groups, choices, strict=True)
        for probability in choice.probabilities
    ]


@step
async def value(goal: str, described: str) -> float:
    """How promising the model finds a state, from 0 to 1."""
    choice = await choose(
        prompts.value_prompt(goal, described), list(prompts.VALUES), system=prompts.SYSTEM
    )
    pairs = zip(choice.probabilities, prompts.VALUES.values(), strict=True)
    return min(sum(probability * promise for probability, promise in pairs), 1.0)


@step
async def continuation_logprobs(prompt: str, options: list[str]) -> list[float]:
    """The log-probability that each option continues a prompt, by its first token."""
    groups = [options[at : at + MAX_CHOICES] for at in range(0, len(options), MAX_CHOICES)]
    found = await gather(*(_logprobs(prompt, group) for group in groups))
    return [logprob for group in found for logprob in group]


async def _logprobs(prompt: str, options: Sequence[str]) -> list[float]:
    """Of at most MAX_CHOICES options; halved if two of them begin with the same token."""
    try:
        choice = await choose(prompt, options, raw=True)
    except InvalidRequest:
        if len(options) == 1:
            raise
        middle = len(options) // 2
        return [
            *await _logprobs(prompt, options[:middle]),
            *await _logprobs(prompt, options[middle:]),
        ]
    if choice.logprobs:
        return [max(each, LEAST_LOGPROB) for each in choice.logprobs]
    return [0.0 if each else LEAST_LOGPROB for each in choice.probabilities]


class Fits:
    """How well words continue their texts; each is asked of the model once in a search."""

    def __init__(self, setbacks: Setbacks) -> None:
        self._setbacks = setbacks
        self._logprobs: dict[tuple[str, str], float] = {}

    async def ask(self, continuations: Iterable[Continuation]) -> None:
        """Ask for what is not known yet of some continuations, all at once.

        What a failed call is about stays unknown.
        """
        wanted: dict[str, dict[str, None]] = {}
        for each in continuations:
            for prompt in (each.prompt, each.without):
                if (prompt, each.option) not in self._logprobs:
                    wanted.setdefault(prompt, {})[each.option] = None
        found = await gather(
            *(
                self._setbacks.none_if_failed(continuation_logprobs(prompt, list(options)))
                for prompt, options in wanted.items()
            )
        )
        for (prompt, options), logprobs in zip(wanted.items(), found, strict=True):
            for option, logprob in zip(options, logprobs or (), strict=logprobs is not None):
                self._logprobs[prompt, option] = logprob

    def knows(self, each: Continuation) -> bool:
        """Whether the model has answered what `of` depends on."""
        return all(
            (prompt, each.option) in self._logprobs for prompt in (each.prompt, each.without)
        )

    def of(self, each: Continuation) -> float:
        """From 0 to 1: p / (p + q), with p the probability in its text and q that without it.

        0.5: the text says nothing about the word.
        """
        gain = self._logprobs[each.prompt, each.option] - self._logprobs[each.without, each.option]
        return 1.0 / (1.0 + math.exp(-gain))
