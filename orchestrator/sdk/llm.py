"""llm: a call of the run's model, with the sub-deadline of the call's stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, get_args, overload

from pydantic import BaseModel

from orchestrator.execution.calls import run_llm_call
from orchestrator.execution.context import current_context
from orchestrator.sdk.schemas import Shape, answer_in, json_schema_of
from serving.generation import GenerationRequest, Message, Role

M = TypeVar("M", bound=BaseModel)

Prompt = str | Sequence[Message | Mapping[str, Any]]
OnText = Callable[[str], None]


@overload
async def llm(
    prompt: Prompt,
    *,
    schema: type[M],
    system: str | None = None,
    max_tokens: int | None = None,
    temperature: float = 0.7,
    top_p: float = 1.0,
    repetition_penalty: float = 1.0,
    stop: Sequence[str] = (),
    seed: int | None = None,
    raw: bool = False,
    on_text: OnText | None = None,
) -> M: ...


@overload
async def llm(
    prompt: Prompt,
    *,
    schema: None = None,
    system: str | None = None,
    max_tokens: int | None = None,
    temperature: float = 0.7,
    top_p: float = 1.0,
    repetition_penalty: float = 1.0,
    stop: Sequence[str] = (),
    seed: int | None = None,
    raw: bool = False,
    on_text: OnText | None = None,
) -> str: ...


@overload
async def llm(
    prompt: Prompt,
    *,
    schema: Mapping[str, Any],
    system: str | None = None,
    max_tokens: int | None = None,
    temperature: float = 0.7,
    top_p: float = 1.0,
    repetition_penalty: float = 1.0,
    stop: Sequence[str] = (),
    seed: int | None = None,
    raw: bool = False,
    on_text: OnText | None = None,
) -> Any: ...


async def llm(
    prompt: Prompt,
    *,
    schema: Shape | None = None,
    system: str | None = None,
    max_tokens: int | None = None,
    temperature: float = 0.7,
    top_p: float = 1.0,
    repetition_penalty: float = 1.0,
    stop: Sequence[str] = (),
    seed: int | None = None,
    raw: bool = False,
    on_text: OnText | None = None,
) -> Any:
    """Call the run's model; the engine gets the sub-deadline of the call's stage.

    Args:
        prompt: the user's message, or the turns of a chat: Messages or OpenAI's dicts.
        schema: a pydantic model or a JSON schema that the answer must satisfy.
        system: a system message before a plain prompt.
        max_tokens: most output tokens; None: as many as the context window allows.
        temperature: of sampling; 0 is greedy.
        top_p: sample among the most probable tokens that have this probability together.
        repetition_penalty: above 1, tokens that the prompt or answer has become less probable.
        stop: texts that end the answer; they are not part of it.
        seed: of sampling; None: not fixed.
        raw: complete a plain prompt without the model's chat template.
        on_text: called with each piece of new text as it arrives.
    Returns:
        The text; with a pydantic model an instance of it; with a JSON schema the JSON value.
    Raises:
        StructuredOutputInvalid: the answer does not satisfy the schema, usually because it was cut
            off.
        DeadlineExceeded: the current deadline passed first.
        ServingError: the engine could not answer; see serving.errors.
        OutsideRun: not within a flow.
    """
    completion = await run_llm_call(
        current_context("llm()"),
        GenerationRequest(
            request_id="",
            prompt=turns_of(prompt, system, raw),
            schema=json_schema_of(schema),
            max_tokens=max_tokens,
            temperature=temperature,
            top_p=top_p,
            repetition_penalty=repetition_penalty,
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            seed=seed,
        ),
        on_text,
    )
    return completion.text if schema is None else answer_in(schema, completion)


def turns_of(prompt: Prompt, system: str | None, raw: bool = False) -> str | tuple[Message, ...]:
    """A prompt as an engine takes it; raises ValueError for a dict that is no turn."""
    if not isinstance(prompt, str):
        return tuple(turn if isinstance(turn, Message) else _message(turn) for turn in prompt)
    if raw:
        return prompt
    before = (Message("system", system),) if system else ()
    return (*before, Message("user", prompt))


def _message(turn: Mapping[str, Any]) -> Message:
    content, role = turn.get("content"), next((r for r in _ROLES if r == turn.get("role")), None)
    if turn.keys() != {"role", "content"} or not isinstance(content, str) or role is None:
        raise ValueError(f"a turn has a role ({', '.join(_ROLES)}) and a text as content: {turn!r}")
    return Message(role, content)


_ROLES: tuple[Role, ...] = get_args(Role)
