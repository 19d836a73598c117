"""`supervisorctl bench`: the group, with every benchmark in it."""

from __future__ import annotations

from supervisor.cli.bench.conv2d import command
from supervisor.cli.bench.machine import BENCHES, make_command
from supervisor.cli.bench.training import batch_command, loader_command

HELP = {
    "gemm": "Matrix products in each type, checked against float64: which precision pays.",
    "attention": "Every way to compute attention, checked against float64: which one to take.",
    "copy": "Copies between host and GPU: whether pinned memory pays.",
    "allreduce": "The sum of gradients over two processes: what several GPUs would gain.",
}
for _name in BENCHES:
    command.add_command(make_command((_name,), _name, HELP[_name]))
command.add_command(loader_command)
command.add_command(batch_command)
command.add_command(make_command(tuple(BENCHES), "all", "All of gemm, attention, copy and allreduce."))

__all__ = ["command"]
