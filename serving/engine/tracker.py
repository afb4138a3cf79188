"""What the engine measures of itself while it runs: the speed of its steps."""

from __future__ import annotations

SMOOTHING = 0.1
"""Weight of the newest step in the running averages."""

INITIAL_TOKEN_S = 0.02
INITIAL_PREFILL_TOKEN_S = 0.0002


class StepTimer:
    """Running averages of a decode step's and a prefilled token's seconds.

    A step's duration is the time to the next one, so idle time must be told apart (`idle`).
    """

    def __init__(self) -> None:
        self.token_s = INITIAL_TOKEN_S
        self.prefill_token_s = INITIAL_PREFILL_TOKEN_S
        self._began_s: float | None = None
        self._prefill_tokens = 0
        self._measured = False

    def step(self, now_s: float, *, decode_tokens: int, prefill_tokens: int) -> None:
        """A step with this composition begins; the former one ended with it."""
        if self._began_s is not None:
            self._learn(now_s - self._began_s)
        self._began_s = now_s if decode_tokens or prefill_tokens else None
        self._prefill_tokens = prefill_tokens

    def idle(self) -> None:
        """The engine ran dry: what passes until the next step is no step's duration."""
        self._began_s = None

    def _learn(self, seconds: float) -> None:
        if seconds <= 0:
            return
        if self._prefill_tokens:
            prefill_s = max(seconds - self.token_s, 0.0) / self._prefill_tokens
            self.prefill_token_s += SMOOTHING * (prefill_s - self.prefill_token_s)
            return
        weight = SMOOTHING if self._measured else 1.0
        self.token_s += weight * (seconds - self.token_s)
        self._measured = True
