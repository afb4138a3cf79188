"""Start-up times: `orchestrate --help`, the import of vLLM, a first answer of the embedded engine.

    python -m benchmarks.startup [--runs 5] [--json]

Wall seconds of whole processes; the median of several runs after one that is not counted.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from benchmarks.command import parser_of, print_result

HELP = [sys.executable, "-m", "cli", "--help"]
IMPORT_VLLM = [sys.executable, "-c", "import vllm.v1.engine.llm_engine"]
FIRST_ANSWER = [
    sys.executable,
    "-c",
    """
import asyncio
from benchmarks.command import parser_of, print_result
from serving.engine.setup.config import EngineConfig
from serving.engine.clients.embedded import EmbeddedEngine
from serving.generation import GenerationRequest

async def main():
    engine = EmbeddedEngine(EngineConfig())
    await engine.generate(GenerationRequest(request_id="first", prompt="Hello", max_tokens=8))
    await engine.close()

asyncio.run(main())
""",
]
MEASURED = {"help_s": HELP, "import_vllm_s": IMPORT_VLLM, "first_answer_s": FIRST_ANSWER}


def median_seconds(command: list[str], runs: int) -> float:
    """Median wall time of a command that succeeds, in seconds."""
    seconds = []
    for _ in range(runs + 1):
        began_s = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        seconds.append(time.perf_counter() - began_s)
    return statistics.median(seconds[1:])


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    figures = {name: median_seconds(command, arguments.runs) for name, command in MEASURED.items()}
    lines = [f"{name:16} {seconds:7.2f}" for name, seconds in figures.items()]
    print_result(figures, "\n".join(lines), as_json=arguments.json)


if __name__ == "__main__":
    main()
