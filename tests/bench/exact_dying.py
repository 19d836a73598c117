"""Ends its own process by SIGKILL: between two batches and once a snapshot of it lies on the disk, or at any moment."""

import os
import signal
import threading
import time
from pathlib import Path

RANK = int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")))


class Dying:
    """To be asked after every batch; `after` 0 means never. Of several ranks the one named in DYING_RANK dies."""

    def __init__(self, after):
        self._after, self._made = after if int(os.environ.get("DYING_RANK", "0")) == RANK else 0, 0
        self._pace_s = float(os.environ.get("DYING_PACE_S") or (0.03 if after else 0))
        self._before = self._there() if after else set()
        self._in_s = float(os.environ.get("DYING_IN_S", "0"))
        """Seconds from the first batch to the end, wherever the training is by then; 0 means never."""

    @staticmethod
    def _there():
        return {path.name for path in Path(os.environ["ROCM_SUPERVISOR_SNAPSHOTS"]).glob("step-*.pt")}

    def batch(self):
        """A batch was made."""
        self._made += 1
        if self._made == 1:
            Path(os.environ["ROCM_SUPERVISOR_ATTEMPT_DIR"], "began").touch()
            if self._in_s:
                threading.Thread(target=self._die_later, daemon=True).start()
        time.sleep(self._pace_s)
        if self._after and self._made >= self._after and self._there() - self._before:
            Path(os.environ["ROCM_SUPERVISOR_ATTEMPT_DIR"], "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def _die_later(self):
        time.sleep(self._in_s)
        Path(os.environ["ROCM_SUPERVISOR_ATTEMPT_DIR"], "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)


def tell(digest, *facts):
    """Print how a training ended, in one write: several ranks share the output."""
    print("DIGEST %d %s\n" % (RANK, " ".join([digest.hexdigest(), *map(str, facts)])), end="", flush=True)
