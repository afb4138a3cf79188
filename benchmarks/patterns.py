"""Accuracy and speed of the prediction of a live run's stages from past runs.

    python -m benchmarks.patterns [--data ../shared/data/agentic] [--only errors|speed] [--json]

Errors: real workflows, each in turn the live run and all others the library. Their token counts
are real, their times simulated (step_time.py). Speed: wall times on one thread, for patterns like
those workflows, or synthetic ones if they are absent.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    # NumPy reads the number of threads at its import.
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")

    from benchmarks.pattern_report import main

    sys.exit(main(__doc__))
