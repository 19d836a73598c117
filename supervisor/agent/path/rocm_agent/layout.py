"""The numbers of the attempt's folder as `supervisor/core/folder.py` decides them; a test compares the two."""

import struct

ENV_FOLDER = "ROCM_SUPERVISOR_ATTEMPT_DIR"
ENV_CONV2D = "ROCM_SUPERVISOR_CONV2D"
ENV_RESUME_FROM = "ROCM_SUPERVISOR_RESUME_FROM"
RECORDER = "recorder.bin"
AGENT = "agent.jsonl"
STACKS = "stacks"
STACKS_SIGNAL_OFFSET = 7

MAGIC = b"ROCMREC1"
HEADER_BYTES = 4096
CAPACITY_DEFAULT = 131072
IDENTITY = struct.Struct("<8sIIII")
CLAIM_OFFSET = 24
CLAIM = struct.Struct("<Iiq")
HEAD_OFFSET = 64
HEAD = struct.Struct("<Q")
COMMAND_OFFSET = 128
COMMAND = struct.Struct("<II")
ANSWER_OFFSET = 192
ANSWER = struct.Struct("<II")
STAGE_OFFSET = 256
STAGE = struct.Struct("<Iiq")
ASIDE_OFFSET = 320
ASIDE = struct.Struct("<Iiq")

COMMAND_SAVE = 1
COMMAND_SAVE_AND_STOP = 2
ANSWER_SAVING = 1
ANSWER_SAVED = 2
ANSWER_CANNOT = 3

STAGES = ("unknown", "setup", "warmup", "step", "validate", "checkpoint", "ended")
SETUP, WARMUP, STEP, VALIDATE, CHECKPOINT, ENDED = range(1, 7)
ASIDES = ("", "data_wait", "compile")
DATA_WAIT, COMPILE = 1, 2

RECORD = struct.Struct("<QqqiIdfffqI")
CHECK_XOR = 0xA5A5A5A5
KNOWN_EPOCH = 1
KNOWN_LOSS = 2
KNOWN_LR = 4
KNOWN_GRAD_NORM = 8
KNOWN_DATA_WAIT = 16
KNOWN_GPU_MEMORY = 32
KNOWN_SKIPPED = 64
