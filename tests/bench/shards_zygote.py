"""Forks the ranks of one launch after another from an interpreter that has imported torch, as its first line asks.

Each line of stdin is {"program", "argv", "output", "folder", "ranks": [{"NAME": "VALUE"}]}; it answers {"pids"}, and
after another line {"statuses"}, once all have ended.
"""

import json
import os
import random
import runpy
import sys

sys.path.insert(0, sys.argv[1])
sys.argv = sys.argv[:1]

import numpy
import torch
import torch.distributed
import torch.distributed.checkpoint
import torch.distributed.fsdp
import torch.utils.data
from rocm_agent import process

torch.set_num_threads(1)


def be_a_rank(asked, environment):
    """Run the program as a rank; never returns."""
    output = os.open(asked["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.update(environment)
    status = 1
    try:
        random.seed()
        numpy.random.seed()
        process.begin(asked["folder"])
        sys.argv = [asked["program"], *asked["argv"]]
        runpy.run_path(asked["program"], run_name="__main__")
        status = 0
    except SystemExit as ended:
        status = int(ended.code or 0)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        os._exit(status)


for line in sys.stdin:
    asked = json.loads(line)
    pids = []
    for environment in asked["ranks"]:
        pid = os.fork()
        if not pid:
            be_a_rank(asked, environment)
        pids.append(pid)
    print(json.dumps({"pids": pids}), flush=True)
    sys.stdin.readline()  # until then none is reaped, so that no pid can be another process's
    print(json.dumps({"statuses": [os.waitpid(pid, 0)[1] for pid in pids]}), flush=True)
