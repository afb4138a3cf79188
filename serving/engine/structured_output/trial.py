"""A process that compiles grammars as a trial, within limits of CPU time and memory.

Run as a program by `trial_process`, with the number of its end of a connection. It imports neither
vLLM nor torch. It loads the model's tokenizer once, and does each trial in a child: the operating
system ends a child that exceeds a limit, and the next trial has a fresh one at once. It ends when
the connection does, also in the middle of a trial: when its caller has ended.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from serving.engine.structured_output.specification import Specification, Tokenizer, Trial

CPU_S = 0.5
"""CPU time of a trial: ordinary schemas take 1 to 10 ms, one of 3,000 properties 110 ms."""

MAX_FAULT_CHARS = 300

NUM_MASKS = 256
"""Tokens of the answer that a trial writes: ordinary schemas take 0.1 ms for each."""

MEMORY_BYTES = 128 << 20
"""Memory of a trial beyond the tokenizer's: ordinary schemas take 5 MB."""


def compile_specification(specification: Specification, tokenizer: Any) -> Trial:
    """Compile a specification as vLLM's guidance backend does, and write an answer by its masks.

    A mask is computed for each token of an answer, in the engine's step: an ambiguous grammar of 50
    bytes takes 150 ms for each.
    """
    from llguidance import LLMatcher

    try:
        grammar, lark = _grammar(specification)
    except (ValueError, KeyError, TypeError, AssertionError) as error:
        return Trial(f"invalid: {error}")
    if tokenizer is None:
        return Trial(LLMatcher.validate_grammar(grammar) or None, lark)
    matcher = LLMatcher(tokenizer, grammar, log_level=0)
    for number in range(NUM_MASKS):
        if matcher.is_error() or matcher.is_stopped():
            break
        mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        allowed = np.flatnonzero(np.unpackbits(mask, bitorder="little"))
        allowed = allowed[allowed != tokenizer.eos_token]  # a long answer, rather than a short one
        if not len(allowed):
            break
        matcher.consume_token(int(allowed[number * 7919 % len(allowed)]))  # now this, now that
    fault = " ".join(matcher.get_error().split())[:MAX_FAULT_CHARS]  # it may repeat the grammar
    return Trial(fault or None, lark)


def _grammar(specification: Specification) -> tuple[str, str | None]:
    """llguidance's form of a specification, as vLLM's `serialize_guidance_grammar` makes it.

    Returns: the grammar; and its Lark text, if it was converted.
    """
    from llguidance import LLMatcher, StructTag, grammar_from

    def of_schema(schema: Any) -> str:
        spaces: Any = {"whitespace_flexible": specification.any_whitespace}
        return LLMatcher.grammar_from_json_schema(schema, defaults=spaces)

    kind: Any = specification.kind
    text = specification.text
    if kind == "json":
        return of_schema(text), None
    if kind == "json_object":
        return of_schema('{"type": "object"}'), None
    if kind == "structural_tag":
        document = json.loads(text)
        tags = []
        for each in document["structures"]:
            triggers = (name for name in document["triggers"] if each["begin"].startswith(name))
            trigger = next(triggers, None)
            if trigger is None:
                raise ValueError(f"no trigger is a prefix of {each['begin']!r}")
            tags.append(
                StructTag(
                    trigger=trigger,
                    begin=each["begin"],
                    grammar=of_schema(each["schema"]),
                    end=each["end"],
                )
            )
        return StructTag.to_grammar(tags), None
    grammar = grammar_from(kind, text)
    return grammar, grammar if kind == "grammar" and grammar != text else None


def _serve(connection: Connection[Any, Any]) -> None:
    """Do one trial after the other until the connection ends.

    Messages: a Tokenizer or None, once; then (number, Specification), answered by (number, Trial),
    or (number, None), which ends the trial of that number if it is running.
    """
    os.nice(10)  # steps of the engine come first
    tokenizer = _loaded(connection.recv())
    while True:
        number, specification = connection.recv()
        if specification is not None:
            _try(connection, number, specification, tokenizer)


def _loaded(tokenizer: Tokenizer | None) -> Any:
    from llguidance import LLTokenizer

    if tokenizer is None:
        return None
    return LLTokenizer(
        tokenizer.definition, n_vocab=tokenizer.num_tokens, eos_token=tokenizer.eos_token
    )


def _try(
    connection: Connection[Any, Any], number: int, specification: Specification, tokenizer: Any
) -> None:
    results, childs_end = Pipe(duplex=False)
    child = os.fork()
    if child == 0:
        _answer_as_child(childs_end, specification, tokenizer)
    childs_end.close()  # so that the end of the child ends `results`
    with results:
        try:
            while results not in wait([connection, results]):
                if connection.recv() == (number, None):
                    os.kill(child, signal.SIGKILL)
        except EOFError:  # the caller has ended
            os.kill(child, signal.SIGKILL)
            raise
        trial = _received(results)
    _, status = os.waitpid(child, 0)
    connection.send((number, trial or _ended(os.waitstatus_to_exitcode(status))))


def _received(results: Connection[Any, Any]) -> Trial | None:
    try:
        trial: Trial = results.recv()
    except (EOFError, OSError):  # OSError: it ended in the middle of its answer
        return None
    return trial


def _ended(exit_code: int) -> Trial:
    """The outcome of a trial that ended without an answer."""
    if exit_code == -signal.SIGPROF:
        return Trial(f"compiling it, and the masks of an answer, takes more than {CPU_S:g} s")
    if exit_code == -signal.SIGKILL:
        return Trial("compiling it was stopped", was_stopped=True)
    return Trial(f"compiling it takes more than {MEMORY_BYTES >> 20} MiB of memory")


def _answer_as_child(
    results: Connection[Any, Any], specification: Specification, tokenizer: Any
) -> NoReturn:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        memory_bytes = pages * resource.getpagesize() + MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        # RLIMIT_CPU counts whole seconds only; the signal of this timer ends the process as well.
        signal.setitimer(signal.ITIMER_PROF, CPU_S)
        trial = compile_specification(specification, tokenizer)
        signal.setitimer(signal.ITIMER_PROF, 0)
        results.send(trial)
        os._exit(0)
    finally:
        os._exit(1)  # an error: of memory, among others


if __name__ == "__main__":
    try:
        _serve(Connection(int(sys.argv[1])))
    except (EOFError, ConnectionError):
        sys.exit()  # the caller has ended
