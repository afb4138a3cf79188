"""Accuracy and speed of the prediction of a live run's stages from past runs.

    python benchmarks/patterns.py [--data ../shared/data/agentic] [--only errors|speed] [--json]

Errors: real workflows, each in turn the live run and all others the library. Their token counts
are real, their times simulated (step_time.py). Speed: wall times on one thread, for patterns like
those workflows, or synthetic ones if they are absent.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    # NumPy reads the number of threads at its import. The parent folder replaces this one in
    # sys.path: otherwise `import patterns` would import this file instead of the package.
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    sys.path[0] = str(Path(__file__).resolve().parents[1])

    from benchmarks.pattern_report import main

    sys.exit(main(__doc__.splitlines()[0]))
