"""The production scheduler of a replica, with measurements that a benchmark can fetch by HTTP."""

from __future__ import annotations

import json
from pathlib import Path

from serving.engine.scheduler.scheduler import SloAsyncScheduler, SloScheduler
from serving.sim.drive.counting_scheduler import CountingMixin

FILE_KEY = "measurements"
"""Where the path of the file of measurements is in vLLM's ``additional_config``."""


class RecordingMixin(CountingMixin):
    """Writes its counters and steps to a file when its prefix cache is reset.

    That reset is the one request of vLLM's API server that reaches the scheduler of an idle engine
    (POST /reset_prefix_cache, in its development mode).
    """

    def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """Write what was measured since the last reset, then forget it and all that was learned.

        The file is a JSON object: `counters` (EngineCounters) and `samples`, a list of a step's
        composition (Composition) and its seconds.
        """
        counters = self.counters()
        document = {
            "counters": {name: getattr(counters, name) for name in counters.__slots__},
            "samples": self.samples(),
        }
        file = Path(self.vllm_config.additional_config[FILE_KEY])
        file.write_text(json.dumps(document), encoding="utf-8")
        self.reset(self.planner.spec)
        done: bool = super().reset_prefix_cache(reset_running_requests, reset_connector)
        return done


class RecordingScheduler(RecordingMixin, SloScheduler):
    """For platforms without asynchronous scheduling."""


class RecordingAsyncScheduler(RecordingMixin, SloAsyncScheduler):
    """For GPUs."""
