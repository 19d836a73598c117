"""The attempt's folder: the names and byte layout on which daemon, shim and agent agree.

The shim and the agent cannot import this (they run on the standard library of any Python), so they repeat the few
numbers they need; a test holds the three against each other.

There are two areas: the daemon writes where the training's user can only read; the training writes in `run/`, which the
daemon only reads, through supervisor/untrusted_files.py. The daemon creates every folder itself.

STATE/jobs/JOB/ATTEMPT/             the daemon's
    launch.json     daemon -> shim     {"version": 1, "job", "attempt", "argv", "cwd", "env", "grace_s", "save_s"}
    remedies.json   daemon -> agent    {"version": 1, "settings": {NAME: {"value", "remedies"}}}; absent without any
                                        ("remedies" is empty where a tune has set it)
    tune.json       daemon -> agent    {"version": 1, "id", "settings": {KNOB: value}, "until_ns" (monotonic; null:
                                        for this attempt), "facts" (whether to report the training's own settings)};
                                        absent where the owner's settings hold
    output.txt      daemon             output.log, folded and bounded
    evidence/       daemon             one folder per incident
STATE/jobs/JOB/ATTEMPT/run/         the training's; ROCM_SUPERVISOR_ATTEMPT_DIR names it
    shim.json       shim -> daemon     {"version": 1, "pid", "start_ticks", "boot_id", "training_pid",
                                        "training_start_ticks", "started_unix_s"}
    exit.json       shim -> daemon     {"version": 1, "exit_code", "signal", "error", "max_rss_bytes", "user_s",
                                        "system_s", "started_unix_s", "ended_unix_s", "ended_monotonic_ns",
                                        "leftovers", "in_background"}
    stop_asked      unit -> daemon     empty: the attempt's unit was stopped by hand (written by its ExecStop=)
    start_asked     shim -> daemon     empty: the unit of an attempt that is over was started by hand
    recorder.bin    agent <-> daemon   rank 0; recorder.rankN.bin for rank N; laid out below; made by the shim
    agent.jsonl     agent -> daemon    one object per line: {"event", "pid", "rank", "monotonic_ns", "unix_s", ...}
    output.log      the training       stdout and stderr, appended; the daemon gives back to the disk what it has read
    ranks.bin       agent              64-bit values shared between the ranks of one training (snapshots/board.py)
    rankN.part.pt   agent              what rank N alone holds of a snapshot, until rank 0 has joined it to its own
    stacks/PID.txt  agent              present while process PID answers STACKS_SIGNAL by dumping its stacks into it

In the job's folder, which is the daemon's, these are the training's:
`STATE/jobs/JOB/conv2d/` is the agent's: what it learned of each device's convolutions, for the job's next attempts.
`STATE/jobs/JOB/snapshots/` holds the newest snapshots of the job over all its attempts, `step-STEP.pt`, written by the
agent and removed by the daemon once the job has finished; where each rank writes a shard, `step-STEP/` with the shards
and their manifest.

`STATE/jobs/JOB/triage-ATTEMPT-REPLAY/` is laid out as an attempt, for one replay of the step at which an attempt went
wrong; its agent writes run/triage.json, and the daemon removes it once the finding is recorded.
`STATE/jobs/JOB/standby-NUMBER/` is the folder of an interpreter that waits to be attempt NUMBER (see
`runner/standby_shim.py`):
    standby.json    daemon -> shim     {"version": 1, "launch" (as in launch.json), "modules" ([[name, file or null]]),
                                        "folder" (the attempt's), "after" (pid, start_ticks of the shim before it),
                                        "alone_s" (how long it may wait once that is gone)}
    remedies.json   daemon -> agent    as in an attempt's folder: those that the attempt would have at present
    run/door        daemon -> shim     a named pipe: "go" once launch.json lies in the attempt's folder, or "end"
    run/going       shim               the door's name, written on "go"
    run/ready.json  shim -> daemon     {"version": 1, "imported_s"}: all is imported, and it waits
    run/refused.json shim -> daemon    {"version": 1, "why"}: it will not be the attempt
    run/output.log  the interpreter    what importing printed; moves into the attempt's folder

`STATE/jobs/JOB/current` is a symbolic link to the newest attempt's folder, made by the daemon; `STATE/jobs/JOB/lock`,
made by the daemon, is held (flock) by the shim for as long as anything of the attempt runs.

Fields of agent.jsonl besides the common ones, by event:
    alive             python, argv
    claimed           rank, world_size, torch (its version, or null where it was not met), imported (what takes long to
                      import, in the order in which that was begun: a list of [name, file])
    plan              framework, version, epochs, start_epoch, batches_per_epoch, save_dir, device, model, batch,
                      image_size, torch; of a framework that counts steps of the optimizer, total_steps and
                      steps_per_epoch in place of batches_per_epoch; adjusts (the settings of remedies that the
                      hook can change) and saves_each_epoch, where they apply
    loops             epochs, steps_per_epoch, total_steps (of the whole training): what is known from the loops around
                      the first step of a training whose framework reports no plan
    checkpoint_saved  paths (list), epoch, step, requested (bool); of a snapshot kind ("snapshot"), and where it was
                      taken by itself stall_s, write_s, size_bytes, every_s
    snapshots         every_s: from now on snapshots are taken by themselves
    save_failed       error; of a snapshot kind ("snapshot"), step, every_s
    exception         type, message, traceback
    reaped            codes: of torchrun's agent, before it ends the other ranks: the status of each rank that it has
                      reaped, by pid, negative for a signal (read after a fault only)
    patched           conv2d (algorithm), scope, torch
    counting          scale ("training" or "attempt": what the recorder's steps count), by, first (number of the first
                      step), resumed (true, false, or null where not known), path (of what it went on from)
    file_saved        path, size_bytes, modified_s and modified_ns (integer seconds and the rest), step (the last one
                      made when it was saved)
    conv2d_failed     layer, kind (pass), sizes, error, instead ("unfold" or "native"), everywhere (whether every layer
                      is computed so from now on)
    resumed           path, epoch, step; lost where a snapshot's place in the data could not be taken up: why
    train_end         epoch, step
    hook_failed       where, error
    allocator         gpu_index (as torch counts), reserved_bytes, allocated_bytes, inactive_split_bytes, retries, ooms,
                      total_bytes; of each GPU that the process holds memory on, at a step's end, each half minute, and
                      at most every 2 s where a retry, an OOM or a change of 1 % came
    workers           loader (number of the iteration), pids (list), training (whether the training draws from it),
                      iterable, ended (true once they have ended)
    trains            of a process that trains, and has no recorder; ended (true once it comes to its end,
                      or its program ends it), error (the exception that ends it), of (its pid, from another process),
                      restarts (true where that is its launcher, which starts it again as often as it may),
                      status (the one that it ends with by itself; null where its interpreter does not know it)
    program_ends      of (pid of the process that trains, by the command, which comes to its end while that lives)
    device            device (of a JAX training: "cpu", "gpu", "tpu")
    precision         asked, used ("half", "bfloat16", "single"), why, device
    epoch_end         epoch, fitness, metrics (object), train_loss, val_loss; null is a number that was not finite
    setting_asked     setting (one that the script applies on request)
    tuning            id (of the order in tune.json), step (the last one made without it), applied (knobs in force),
                      refused (knobs that were not set: why), facts (the training's own settings, where asked for),
                      ended (why the owner's settings came back without an order), lent (whether a tune is under way,
                      so that the settings come back by themselves), warned (warnings of Python not seen before in the
                      tune)
    stock             of a loader's batches, while a tune is under way: step, iterator (another number for each new
                      one), workers, ahead (batches that they may have begun and nothing has taken), begun, ready,
                      delivered
    remedy_applied    setting, remedies (list), set (what it came to, for people)
The stage is in the recorder's header, not here.

recorder.bin: a header page, then a ring of records, all little-endian. `head` counts the records ever written; record
number n (from 0) lies in slot n % capacity and carries n + 1 as its sequence, first and (scrambled) last, so that a
torn or overwritten record is known for what it is.
"""

from __future__ import annotations

import struct

RUN = "run"
"""The part of a folder that belongs to the training; the names below that begin with it lie there."""
LAUNCH = "launch.json"
REMEDIES = "remedies.json"
TUNE = "tune.json"
SHIM = "run/shim.json"
EXIT = "run/exit.json"
STOP_ASKED = "run/stop_asked"
START_ASKED = "run/start_asked"
RECORDER = "run/recorder.bin"
AGENT = "run/agent.jsonl"
OUTPUT = "run/output.log"
FOLDED = "output.txt"
STACKS = "run/stacks"
EVIDENCE = "evidence"
CURRENT = "current"
CODE = "code"
"""A link to the package, or to the copy of it, whose shim and agent the attempt runs."""
SNAPSHOTS = "snapshots"
SHARDED_SNAPSHOT = "step-" + "[0-9]" * 12
"""Pattern of the folder of a snapshot of which each rank wrote its shard."""
SHARDS = "rocm-shards.json"
"""The manifest of a generation of shards, which the agent writes last and the prover reads them by."""
CONV2D = "conv2d"
LOCK = "lock"
CONTAINER = "container.json"
"""The container of the newest attempt that runs in one; kept until the engine says that it is gone."""
STANDBY = "standby.json"
GO_FIFO = "run/door"
GOING = "run/going"
READY = "run/ready.json"
REFUSED = "run/refused.json"
GENERATIONS = "generations"
TRIAGE = "triage"
"""The prefix of the names of replay folders, and the name of a report's folder."""

# --- environment of a supervised training -------------------------------------------------------------------------

ENV_FOLDER = "ROCM_SUPERVISOR_ATTEMPT_DIR"
ENV_JOB = "ROCM_SUPERVISOR_JOB"
ENV_ATTEMPT = "ROCM_SUPERVISOR_ATTEMPT"
ENV_RANKS_BACKEND = "ROCM_SUPERVISOR_RANKS_BACKEND"
ENV_CONV2D = "ROCM_SUPERVISOR_CONV2D"
ENV_CONV2D_SCOPE = "ROCM_SUPERVISOR_CONV2D_SCOPE"
ENV_CONV2D_FOLDER = "ROCM_SUPERVISOR_CONV2D_FOLDER"
ENV_CONV2D_WORKSPACE = "ROCM_SUPERVISOR_CONV2D_WORKSPACE_MB"
ENV_CONV2D_WINOGRAD = "ROCM_SUPERVISOR_CONV2D_WINOGRAD"
ENV_CONV2D_TUNE = "ROCM_SUPERVISOR_CONV2D_TUNE_S"
ENV_RESUME_FROM = "ROCM_SUPERVISOR_RESUME_FROM"
ENV_RESUME_STEPS = "ROCM_SUPERVISOR_RESUME_STEPS"
"""JSON, where checkpoints of the job are known: `step` (that of RESUME_FROM), `asked` (whether the command names it)
and `files` (a list of [path, size, modified_ns, step]); a step that is not known is null. With `loads_itself` true
the program finds and loads by itself what no proof can open."""
ENV_SNAPSHOTS = "ROCM_SUPERVISOR_SNAPSHOTS"
"""The folder that snapshots are written into."""
ENV_SNAPSHOT_EVERY = "ROCM_SUPERVISOR_SNAPSHOT_EVERY_S"
"""Seconds between two snapshots, "0" for none but those asked for, "auto" for an interval found by the agent."""
ENV_REPLICAS = "ROCM_SUPERVISOR_SNAPSHOT_REPLICAS"
"""A second folder for snapshots, of another machine; that of all machines where several train together."""
ENV_EPOCH = "ROCM_SUPERVISOR_EPOCH"
"""Number of the launch, growing, as numbers joined by dots, or TRAINING.RESTARTS.RELAUNCH; without it the attempt's."""
END_WORD, END_WORD_BYTES = "rocm-supervisor-end", 4096
"""Memory that a rank of several nodes shares (memfd_create): a robust mutex of its main thread, first its futex."""
ENV_STANDBY = "ROCM_SUPERVISOR_STANDBY"
"""Only in a standby interpreter: how it reaches its shim; removed once read."""
ENV_TRIAGE = "ROCM_SUPERVISOR_TRIAGE"
"""Only in a triage: JSON with `step` (the bad one), `report` (the file to write), `other_batch` and `looked_for`."""
ENV_MEMORY_PROBE = "ROCM_SUPERVISOR_MEMORY_PROBE"
"""Only in a probe of memory: JSON with `report` (the file to write), `steps`, `batch` (samples to draw in place of
`configured`), `precision` and `checkpointing` (null: the training's own), `guard` (whether writing over a file ends it)
`look` (whether it ends at the first batch), `timed` (whether steps are timed), `draws` (batches to draw and time)."""
ENV_MEAN_FAULT = "ROCM_SUPERVISOR_MEAN_FAULT_S"
"""Seconds of training between two faults of the job, from which "auto" is reckoned."""

# --- signals that the shim understands, by name in the signal module ----------------------------------------------

SHIM_SAVE_AND_END = "SIGTERM"
"""Ask the training to save (at most save_s), then SIGTERM to its tree; it never sends SIGKILL by itself."""
SHIM_END = "SIGINT"
"""SIGTERM to the training's tree at once."""
SHIM_KILL = "SIGQUIT"
"""SIGCONT, then SIGKILL to the training's process tree."""
SHIM_CONTINUE = "SIGCONT"
"""SIGCONT to the processes of the training's tree that a signal has stopped; not to one that a terminal controls."""
SHIM_STACKS = "SIGUSR1"
"""Have every Python process of the tree that can dump its stacks do so."""
STACKS_SIGNAL_OFFSET = 7
"""The stack dump is signal SIGRTMIN + this: SIGUSR1 and SIGUSR2 belong to the user's program."""

# --- the recorder's header page -----------------------------------------------------------------------------------

MAGIC = b"ROCMREC1"
HEADER_BYTES = 4096
CAPACITY_DEFAULT = 131072
IDENTITY = struct.Struct("<8sIIII")
"""magic, header bytes, record bytes, capacity, rank; at offset 0."""
CLAIM_OFFSET = 24
CLAIM = struct.Struct("<Iiq")
"""pid of the training process that claimed the recorder (0: none yet), reserved, claim time in monotonic ns."""
HEAD_OFFSET = 64
HEAD = struct.Struct("<Q")
COMMAND_OFFSET = 128
COMMAND = struct.Struct("<II")
"""command, command id; the id changes with each request. Written by daemon or shim."""
ANSWER_OFFSET = 192
ANSWER = struct.Struct("<II")
"""answer, id of the command it answers. Written by the agent."""
STAGE_OFFSET = 256
STAGE = struct.Struct("<Iiq")
"""stage, reserved, since when in monotonic ns."""
ASIDE_OFFSET = 320
ASIDE = struct.Struct("<Iiq")
"""what keeps the present step from computing (0: nothing), whether every stage is reported (1) or not (0), since when
in monotonic ns. Zeros in the file of an agent that does not report it."""
COLLECTIVE_OFFSET = 384
COLLECTIVE = struct.Struct("<Qq")
"""Number of the last collective of all ranks that this one has begun (0: not known), since when in monotonic ns."""

COMMAND_SAVE = 1
COMMAND_SAVE_AND_STOP = 2
ANSWER_SAVING = 1
ANSWER_SAVED = 2
ANSWER_CANNOT = 3
STAGES = ("unknown", "setup", "warmup", "step", "validate", "checkpoint", "ended", "exiting")
"""Index = the number in the header."""
ASIDES = ("", "data_wait", "compile", "loop")
"""Likewise; stages that lie inside a step, of which there may be many a second."""

# --- one record ---------------------------------------------------------------------------------------------------

RECORD = struct.Struct("<QqqiIdfffqIII")
"""sequence, step, monotonic ns, epoch, known (bits), loss, lr, grad norm, data wait s, GPU memory bytes, samples,
tokens (0: not known), check."""
RECORD_WITHOUT_SAMPLES = struct.Struct("<QqqiIdfffqI")
"""What attempts write that were launched before samples and tokens were recorded; an upgrade does not end them."""
CHECK_XOR = 0xA5A5A5A5
"""check = (sequence & 0xFFFFFFFF) ^ CHECK_XOR."""
KNOWN_EPOCH = 1
KNOWN_LOSS = 2
KNOWN_LR = 4
KNOWN_GRAD_NORM = 8
KNOWN_DATA_WAIT = 16
KNOWN_GPU_MEMORY = 32
KNOWN_SKIPPED = 64
"""No field: a gradient scaler skipped the step."""
KNOWN_TUNING = 128
"""No field: the step was made while a tune was trying settings."""
KNOWN_BEGINS = 256
"""No field: the first step of an optimizer that leads, in its process or in place of another."""


def recorder_part(rank: int) -> str:
    """Return what the recorder of a rank is called where the reading of it is reported."""
    return RECORDER if rank == 0 else f"recorder of rank {rank}"
