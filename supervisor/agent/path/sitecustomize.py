"""Starts the agent in every Python process of a supervised training. Never raises into the program.

Python imports the first `sitecustomize` on its path at start, which under supervision is this one, so the user's own,
further down the path, is imported after it as if this one were not there.
"""

# ruff: noqa: PLC0415 - what the user's interpreter may lack is imported behind a fence

import os
import sys


def _start_agent():
    folder = os.environ.get("ROCM_SUPERVISOR_ATTEMPT_DIR")
    if not folder:
        return
    try:
        from rocm_agent import process

        process.start(folder)
    except Exception:
        pass  # a training continues without its agent; the shim sees that it does not answer


def _stand_by():
    """Wait to become the next attempt; unless promoted, this process ends here and never runs its program."""
    try:
        from rocm_agent import standby

        standby.wait(_import_the_users)
    except BaseException:  # whatever it was: two trainings of one job must never run
        os._exit(70)


def _import_the_users():
    """Import the next `sitecustomize` down the path; what it raises is the user's, and `site` reports it as always."""
    here = os.path.dirname(os.path.abspath(__file__))
    ours = [index for index, entry in enumerate(sys.path) if os.path.abspath(entry) == here]
    entries = [(index, sys.path[index]) for index in ours]
    for index in reversed(ours):
        del sys.path[index]
    this = sys.modules.pop(__name__, None)
    try:
        import sitecustomize  # noqa: F401 - another file than this one
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        for index, entry in entries:
            sys.path.insert(index, entry)
        if this is not None:
            sys.modules.setdefault(__name__, this)


if "ROCM_SUPERVISOR_STANDBY" in os.environ:
    _stand_by()
else:
    _start_agent()
    if __name__ == "sitecustomize":
        _import_the_users()
