"""How well, and how fast, past runs foretell a live one's stages.

    python benchmarks/patterns.py [--data ../shared/data/agentic] [--only errors|speed] [--json]

Errors: real workflows, each in turn the live run and all others the library. Their token counts
are real, their times simulated (step_time.py). Speed: wall times on one thread, for patterns like
those workflows, or made-up ones where they are absent.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    # One thread, which must be said before NumPy is imported. And in place of this folder the one
    # above: otherwise this file would be taken for the package whose name it bears.
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    sys.path[0] = str(Path(__file__).resolve().parents[1])

    from benchmarks.pattern_report import main

    sys.exit(main(__doc__.splitlines()[0]))
