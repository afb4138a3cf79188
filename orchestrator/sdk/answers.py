"""Answer: what llm returns with logprobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from serving.generation import Token

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """An answer with the log-probabilities of its tokens.

    Attributes:
        value: what `llm` returns without logprobs: the text, the instance of the schema's model, or
            the JSON value.
        text: as the model wrote it.
        tokens: all tokens that the model generated, the one that ends the answer included; at least
            one.
    """

    value: T
    text: str
    tokens: tuple[Token, ...]

    @property
    def mean_logprob(self) -> float:
        """The mean log-probability of a token, at most 0: the model's confidence.

        It does not depend on the answer's length, as the sum does. `math.exp` of it is the
        geometric mean of the tokens' probabilities.
        """
        return sum(token.logprob for token in self.tokens) / len(self.tokens)
