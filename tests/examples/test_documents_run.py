"""Every block of code in the README and the guides runs, and their commands are the real CLI's.

- `python`: the blocks of a document run in order, as the cells of a notebook do: in one namespace,
  which has all public names of `orchestrator` and, in a guide, those of the README's blocks. A
  block with `await` outside of a function is the body of a flow. Tests that a block defines are
  run. Examples can be imported.
- `sh`: each command runs, `orchestrate` in this process and on the shared engine; of `make` the
  target exists; what is exported are settings that are valid.
- `toml`, `json`: read by the code that reads such files (READERS).
- `text`: what a command prints; not run.

What is in PARSED_ONLY is parsed instead.
"""

from __future__ import annotations

import importlib
import json
import re
import shlex
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from cryptography.fernet import Fernet
from typer.core import TyperCommand
from uvicorn.main import main as uvicorn_command

from agents.tree_of_thoughts.tasks.task_file import parse_task_file
from cli.failures import ExitCode
from cli.main import main
from orchestrator import Settings, read_settings, wiring
from orchestrator.settings import ENV_PREFIX
from orchestrator.wiring import engine_config
from serving.engine.clients.embedded import EmbeddedEngine
from serving.engine.server.api_keys import parse_api_keys
from serving.request_fields import with_tags
from serving.schema_bound import protocol_of
from serving.slo import from_tags
from tests.examples.document_blocks import BLOCKS, COMMANDS, MENTIONED, README, Block
from tests.examples.document_reader import Answering, Notebook, SharedEngine
from tests.places import ROOT

PARSED_ONLY = {
    "orchestrate run deep-research 'How do we rotate": "downloads a model of 4 billion parameters",
    "orchestrate bench mixed": "simulates for minutes",
    "orchestrate bench --suite": "simulates for hours",
    "orchestrate bench --trace requests.csv": "needs a trace of the reader's own",
    "orchestrate serve Qwen": "downloads a model, for GPUs",
    "orchestrate gateway": "serves for ever; test_gateway.py runs it",
    "orchestrate worker --flows": "works for ever; tests/cli/test_queues.py runs it",
    "uvicorn --app-dir examples service:app": "serves for ever; test_service.py runs it",
}
"""Beginnings of commands, or of blocks of Python, that are only parsed, and why."""

SHORTENED = {"orchestrate run tree-of-thoughts": ("--deadline", "2s")}
"""Beginnings of commands, and options that are added: at its deadline a search prints the best so
far, and its exit code may say that the deadline has passed."""

READERS: dict[str, Callable[[str, str], object]] = {
    "docs/serving.md": parse_api_keys,
    "docs/tree_of_thoughts.md": parse_task_file,
}
"""Which code reads a document's files, given the text and a name."""

LANGUAGES = {"json", "python", "sh", "text", "toml"}


def is_in(table: Iterable[str], code: str) -> list[str]:
    """The beginnings of a table that a command or block has."""
    return [beginning for beginning in table if code.startswith(beginning)]


def blocks(language: str, document: Path | None = None) -> list[Block]:
    return [
        block
        for block in BLOCKS
        if block.language == language and document in (None, block.document)
    ]


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    server.asked = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def reader(demo_engine: EmbeddedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of somebody who reads the documents: it has the examples, and an own store."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "examples")
    monkeypatch.setenv("ORCHESTRATE_STORE", f"sqlite:///{tmp_path / 'runs.db'}")
    monkeypatch.setenv("STORE_KEY", Fernet.generate_key().decode())
    monkeypatch.setattr(wiring, "engine_of", lambda settings: SharedEngine(demo_engine))
    return tmp_path


@pytest.fixture
def notebook(
    reader: Path, server: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch
) -> Notebook:
    return Notebook(monkeypatch, reader, f"http://127.0.0.1:{server.server_port}")


def test_every_block_says_its_language() -> None:
    unknown = {block.place: block.language for block in BLOCKS if block.language not in LANGUAGES}
    assert not unknown, f"the language after ``` must be one of {sorted(LANGUAGES)}"


def test_no_block_of_text_hides_code() -> None:
    code = re.compile(r"^\s*(orchestrate|make|python|from|import|await|async|def|class) ", re.M)
    assert not [block.place for block in blocks("text") if code.search(block.text)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "document", dict.fromkeys(b.document for b in blocks("python")), ids=lambda path: path.stem
)
def test_the_python_of_a_document_runs(document: Path, notebook: Notebook) -> None:
    for source in dict.fromkeys([README, document]):
        for block in blocks("python", source):
            notebook.run(block, parsed_only=bool(is_in(PARSED_ONLY, block.text)))


@pytest.mark.parametrize("beginning", [*PARSED_ONLY, *SHORTENED])
def test_every_exception_concerns_a_command_or_block(beginning: str) -> None:
    code = [*COMMANDS, *(block.text for block in blocks("python"))]
    assert any(each.startswith(beginning) for each in code)


def test_every_reader_has_a_file_to_read() -> None:
    files = blocks("toml") + blocks("json")
    assert set(READERS) == {str(block.document.relative_to(ROOT)) for block in files}


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_runs(
    command: str,
    reader: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    program, *arguments = shlex.split(command)
    if program == "make":
        targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert set(arguments) <= set(targets)
        return
    if program == "export":
        for name, _, value in (argument.partition("=") for argument in arguments):
            if name.startswith(ENV_PREFIX):
                assert name.removeprefix(ENV_PREFIX).lower() in Settings.model_fields
            monkeypatch.setenv(name, value)
        engine_config(read_settings())
        return
    if program == "uvicorn":
        context = uvicorn_command.make_context(program, arguments)
        module, _, name = context.params["app"].partition(":")
        monkeypatch.syspath_prepend(ROOT / context.params["app_dir"])
        assert hasattr(importlib.import_module(module), name)
        return
    assert program == "orchestrate", "no test knows this program"
    if is_in(PARSED_ONLY, command):
        (reader / "requests.csv").touch()
        monkeypatch.setattr(TyperCommand, "invoke", lambda self, context: None)
    allowed = [ExitCode.DONE]
    for beginning in is_in(SHORTENED, command):
        arguments += SHORTENED[beginning]
        allowed.append(ExitCode.DEADLINE)
    with pytest.raises(SystemExit) as exited:
        main(arguments)
    printed = capsys.readouterr()
    assert exited.value.code in allowed, printed.err
    assert printed.out or is_in(PARSED_ONLY, command)


@pytest.mark.parametrize("command", MENTIONED)
def test_a_command_in_a_sentence_has_the_options_that_it_names(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their values are not read: --help goes first. What is left out is no error then."""
    arguments = shlex.split(command)[1:]
    if arguments[0] in ("run", "submit") and re.search(r"NAME|path/to|FILE", command):
        arguments[1:2] = [f"{ROOT}/examples/first_flow.py:article"]
    at = arguments.index("--") if "--" in arguments else len(arguments)  # others' flags follow
    with pytest.raises(SystemExit) as exited:
        main([*arguments[:at], "--help", *arguments[at:]])
    assert not exited.value.code, capsys.readouterr().err


@pytest.mark.parametrize("block", [*blocks("toml"), *blocks("json")], ids=lambda block: block.place)
def test_a_file_is_read_by_the_code_that_reads_such_files(block: Block) -> None:
    name = str(block.document.relative_to(ROOT))
    assert READERS[name](block.text, f"{name}.{block.language}")


@pytest.mark.slow
def test_the_requests_of_the_guide_carry_what_the_server_takes(
    notebook: Notebook, server: ThreadingHTTPServer
) -> None:
    for block in blocks("python", ROOT / "docs" / "serving.md"):
        notebook.run(block)
    by_tags, with_tools, by_fields, in_parts = server.asked  # type: ignore[attr-defined]
    assert protocol_of(with_tools["tools"], with_tools["tool_choice"])
    assert from_tags(by_tags["vllm_xargs"]).deadline_s == 2.5
    assert json.loads(with_tags(json.dumps(by_fields).encode()))["vllm_xargs"] == {
        "slo_deadline_s": 2.5
    }
    assert from_tags(in_parts["vllm_xargs"]).then_tbt_s == 0.2
