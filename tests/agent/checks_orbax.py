"""Saves with orbax after a step; prints the stage that is reported during each save and after it."""

import pathlib
import sys

import orbax.checkpoint as ocp
import rocm_agent
from rocm_agent import claim
from rocm_agent.layout import STAGES


class Handler(ocp.CheckpointHandler):
    """Saves nothing of use, and prints the stage."""

    def save(self, directory, item=None, args=None):
        sys.stdout.write(f"during {STAGES[claim.holding().stage]}\n")
        (directory / "file").write_text("saved")

    def restore(self, directory, item=None, args=None):
        return None


@ocp.args.register_with_handler(Handler, for_save=True, for_restore=True)
class Args(ocp.args.CheckpointArgs):
    """Of nothing."""


folder = pathlib.Path(sys.argv[1])
rocm_agent.step(loss=1.0)
ocp.Checkpointer(Handler()).save(folder / "one", args=Args())
sys.stdout.write(f"after {STAGES[claim.holding().stage]}\n")
with ocp.CheckpointManager(folder / "many", item_handlers=Handler()) as manager:
    manager.save(3, args=Args())
    manager.wait_until_finished()
sys.stdout.write(f"after {STAGES[claim.holding().stage]}\n")
