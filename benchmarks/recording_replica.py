"""A replica of `benchmarks.live_replicas`: vLLM's API server with measurements of its engine.

    python -m benchmarks.recording_replica --port 8001 --policy '{"name": "calm", "params": {}}' \
        --settings '{"slots": 32, ...}' --measurements steps.json

The server is that of `orchestrate serve`, with a scheduler class that records its steps. Prefixes
are not cached. The model has random weights and a given width: the random model itself computes a
token in less time than a server needs to send it, so the servers' own cores would be measured.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.command import exit_code
from serving.engine.server.server import serve
from serving.policies.table import PolicySpec
from serving.sim.drive.live_scale import LiveSettings
from serving.sim.drive.replaying_engine import ReplayConfig

MODEL_SHAPE = {
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
}
"""Replaces the shape of the random model: 21 million parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingConfig(ReplayConfig):
    """An engine of a server that records its steps.

    Attributes:
        measurements: the file that it writes them to (`recording_scheduler`).
    """

    measurements: str

    def vllm_arguments(self, model_path: str, platform: str) -> dict[str, Any]:
        """Those of ReplayConfig with the recording scheduler and the wider model."""
        arguments = ReplayConfig.vllm_arguments(self, model_path, platform)
        name = "RecordingScheduler" if platform == "cpu" else "RecordingAsyncScheduler"
        return arguments | {
            "scheduler_cls": f"benchmarks.recording_scheduler.{name}",
            "additional_config": arguments["additional_config"]
            | {"measurements": self.measurements},
            "load_format": "dummy",
            "hf_overrides": MODEL_SHAPE,
        }


def run(options: argparse.Namespace) -> None:
    """Serve until a signal."""
    os.environ["VLLM_SERVER_DEV_MODE"] = "1"  # for POST /reset_prefix_cache
    settings = LiveSettings(**json.loads(options.settings))
    config = RecordingConfig(
        policy=PolicySpec.from_json(json.loads(options.policy)),
        slots=settings.slots,
        step_tokens=settings.step_tokens,
        max_model_tokens=settings.context_tokens,
        kv_tokens=settings.kv_tokens,
        measurements=str(options.measurements),
        verbose=options.verbose,
    )
    serve(config, port=options.port)


def main(given: Sequence[str] | None = None) -> int:
    """Serve; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--policy", required=True, help="JSON of a PolicySpec")
    parser.add_argument("--settings", required=True, help="JSON of LiveSettings")
    parser.add_argument("--measurements", type=Path, required=True, help="the file for them")
    parser.add_argument("--verbose", action="store_true")
    return exit_code(partial(run, parser.parse_args(given)))


if __name__ == "__main__":
    sys.exit(main())
