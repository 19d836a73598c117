"""A small real training, of a framework or a loop of its own, that hurts itself once and keeps its own account.

A line of the account is `Unix time, process, step, finite`: the step by the count that the framework keeps with its
state, and whether the loss was a number, and after the first step of a process all weights too.
"""

import argparse
import ctypes
import math
import mmap
import os
import re
import resource
import signal
import sys
import threading
import time
from pathlib import Path

import torch

parser = argparse.ArgumentParser()
parser.add_argument("framework", choices=("loop", "own", "lightning", "transformers", "ultralytics"))
parser.add_argument("fault")
parser.add_argument("--at", type=int, required=True, help="the step before which it strikes")
parser.add_argument("--folder", type=Path, required=True)
parser.add_argument("--saves", type=Path, help="where the loop `own` keeps its files")
parser.add_argument("--resume", type=Path)
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--every-s", type=float, default=0.05)
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--device", default="cpu")
asked = parser.parse_args()
torch.set_num_threads(1)
BATCH, BATCHES, SAVE_EVERY, KEPT = 4, 12, 10, 4
ATTEMPT = int(os.environ.get("ROCM_SUPERVISOR_ATTEMPT", "1"))
NOTE = asked.folder / "struck"
MEMORY_BYTES = 64 << 20
CARD_BYTES = 4 << 30
OOM = getattr(torch.cuda, "OutOfMemoryError", RuntimeError)


class InjectedError(Exception):
    """A bug of the script."""


def note():
    """Write down when it first strikes, whole or not at all."""
    if NOTE.exists():
        return
    part = NOTE.with_suffix(".part")
    part.write_text(repr(time.time()))
    part.rename(NOTE)


def lasts(*faults):
    """Whether one of these faults has struck and this is still the attempt that it struck in; workers know it too."""
    return asked.fault in faults and ATTEMPT == 1 and NOTE.exists()


def wait_for_ever():
    """Hang."""
    while True:
        time.sleep(3600)


def in_thread(work):
    """Run it beside the training."""
    threading.Thread(target=work, daemon=True).start()


def raise_here():
    """Raise as a bug of the script would."""
    raise InjectedError("a bug of the script")


def raise_in_main():
    """Have the main thread raise, whatever it does."""
    main = ctypes.c_ulong(threading.main_thread().ident)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(main, ctypes.py_object(InjectedError))


def raise_on_signal(*_):
    """Raise from a signal's handler."""
    raise InjectedError("signal handler")


def signalled():
    """Have a signal raise, as a launcher's would."""
    signal.signal(signal.SIGUSR1, raise_on_signal)
    os.kill(os.getpid(), signal.SIGUSR1)


def exhaust_memory():
    """Take more memory than the process may have: the allocation that fails is a real one."""
    now_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
    resource.setrlimit(resource.RLIMIT_AS, (now_bytes + MEMORY_BYTES, resource.RLIM_INFINITY))
    held = []
    while True:
        held.append(bytearray(MEMORY_BYTES // 4))


def exhaust_tensors():
    """Take more memory than the process may have through torch's allocator."""
    now_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
    resource.setrlimit(resource.RLIMIT_AS, (now_bytes + MEMORY_BYTES, resource.RLIM_INFINITY))
    held = []
    while True:
        held.append(torch.zeros(MEMORY_BYTES // 4, dtype=torch.uint8))


def raise_gpu_oom():
    """Raise what torch raises where a card is full."""
    raise OOM("HIP out of memory. Tried to allocate 3200.00 MiB. GPU 0 has a total capacity of 5.98 GiB")


def bus_error():
    """Touch a page of a mapped file whose end was cut off, as by a data set that is rewritten."""
    path = asked.folder / "mapped"
    path.write_bytes(bytes(2 * mmap.PAGESIZE))
    with path.open("r+b") as file:
        mapped = mmap.mmap(file.fileno(), 0)
        file.truncate(0)
        mapped[mmap.PAGESIZE]


def deadlock():
    """Wait for a lock that this thread holds."""
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def stop_short():
    """End with status 0, as a script does that swallows its error."""
    sys.stdout.flush()
    os._exit(0)


def newest_save():
    """Return the newest file that this training could go on from."""
    if asked.framework == "own":
        return max(asked.saves.glob("ckpt-*.pt"))
    return max(Path(os.environ["ROCM_SUPERVISOR_SNAPSHOTS"]).glob("step-*.pt"))


def truncate_newest():
    """Cut the newest save in half and die, as at a power cut."""
    path = newest_save()
    os.truncate(path, path.stat().st_size // 2)
    os.kill(os.getpid(), signal.SIGKILL)


def corrupt_newest():
    """Spoil the middle of the newest save and die."""
    path = newest_save()
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 4)
        file.write(os.urandom(path.stat().st_size // 2))
    os.kill(os.getpid(), signal.SIGKILL)


def empty_newest():
    """Leave the newest save empty and die, as a file system without its journal does."""
    os.truncate(newest_save(), 0)
    os.kill(os.getpid(), signal.SIGKILL)


def poison_newest():
    """Put NaN into every tensor of the newest save and die; its shape stays as it was."""
    path = newest_save()
    state = torch.load(path, map_location="cpu", weights_only=False)
    poison(state)
    torch.save(state, path)
    os.kill(os.getpid(), signal.SIGKILL)


def poison(state):
    """Make every tensor of floats NaN, however deep it lies."""
    if isinstance(state, torch.Tensor) and state.is_floating_point():
        state.detach().fill_(math.nan)
    elif isinstance(state, dict):
        list(map(poison, state.values()))
    elif isinstance(state, (list, tuple)):
        list(map(poison, state))


def remove_newest():
    """Take the newest save away and die."""
    newest_save().unlink()
    os.kill(os.getpid(), signal.SIGKILL)


def gpu_error():
    """Write beyond a tensor's end on the card, where torch's own check meets it."""
    rows = torch.ones(1, dtype=torch.int64, device="cuda")
    rows[torch.ones(1, dtype=torch.int64, device="cuda")] = 0
    torch.cuda.synchronize()


class Beyond:
    """More memory than is there, behind one that is."""

    def __init__(self, real):
        self.__cuda_array_interface__ = {
            "shape": (1 << 34,), "typestr": "<f4", "data": (real.data_ptr(), False), "version": 3, "strides": None,
        }  # fmt: skip


def gpu_access():
    """Use memory on the card that nobody has: no check meets that, only the card does."""
    torch.as_tensor(Beyond(torch.ones(1 << 20, device="cuda")), device="cuda").mul_(1.0)
    torch.cuda.synchronize()


def gpu_oom():
    """Take the card's memory, of which this process may have a part, until there is none."""
    total_bytes = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(CARD_BYTES / total_bytes)
    held = []
    while True:
        held.append(torch.empty(MEMORY_BYTES, dtype=torch.uint8, device="cuda"))


def signal_of(number):
    """Return what sends this process a signal, and notes where one is ignored that would end it by default.

    A library's handler of crashes (LLVM's) takes a signal for a fault that the processor will raise again, and lets
    the process go on: https://github.com/llvm/llvm-project/issues/60004. It is taken away.
    """

    def send():
        handler, in_c = signal.getsignal(number), handler_in_c(number)
        if handler == signal.SIG_DFL and number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        if number != signal.SIGSTOP and not callable(handler):
            time.sleep(1.0)  # another thread may have to take it
            (asked.folder / "outlived").write_text("%s, %s, %s" % (handler, in_c, signals_of_process()))

    return send


def signals_of_process():
    """Return what the kernel keeps of this process's signals, and who traces it."""
    kept = ("Sig", "Shd", "TracerPid", "NSpid")
    return " ".join(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(kept))


def handler_in_c(number):
    """Return the handler that a library set, of which Python knows nothing, and the file that it lies in."""
    action = (ctypes.c_size_t * 32)()  # begins with the handler's address
    ctypes.CDLL(None).sigaction(number, None, action)
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, _, rest = line.partition("-")
        if int(first, 16) <= action[0] < int(rest.split()[0], 16):
            return "%#x in %s" % (action[0], line.split()[-1])
    return "%#x" % action[0]


AT_ONCE = {
    "exception": raise_here,
    "exception_again": raise_here,
    "async_exception": lambda: in_thread(raise_in_main),
    "signal_exception": signalled,
    "memory_limit": exhaust_memory,
    "tensor_memory_limit": exhaust_tensors,
    "gpu_oom_raised": raise_gpu_oom,
    "abort": lambda: in_thread(os.abort),
    "segfault": lambda: in_thread(lambda: ctypes.string_at(1)),
    "bus_error": bus_error,
    "sigill": signal_of(signal.SIGILL),
    "sigfpe": signal_of(signal.SIGFPE),
    "sigquit": signal_of(signal.SIGQUIT),
    "sigint": signal_of(signal.SIGINT),
    "sigterm": signal_of(signal.SIGTERM),
    "sigkill": signal_of(signal.SIGKILL),
    "sigstop": signal_of(signal.SIGSTOP),
    "exit_0": stop_short,
    "exit_3": lambda: os._exit(3),
    "exit_7": lambda: os._exit(7),
    "lock_gil": lambda: in_thread(lambda: re.match(r"(a?){40}a{40}", "a" * 40)),
    "deadlock": deadlock,
    "save_truncated": truncate_newest,
    "save_corrupt": corrupt_newest,
    "save_empty": empty_newest,
    "save_poisoned": poison_newest,
    "save_removed": remove_newest,
    "gpu_error": gpu_error,
    "gpu_access": gpu_access,
    "gpu_oom": gpu_oom,
    "gpu_sleep": lambda: (torch.cuda._sleep(1 << 62), torch.cuda.synchronize()),
}
LASTING = (
    "loader_stall", "worker_killed", "item_exception", "validation_stall", "nan", "inf", "nan_weights", "inf_gradient",
    "spike", "slow_save", "bad_batch", "bad_batch_skipped",
)  # fmt: skip
BY_OTHERS = "by_others"
assert asked.fault in (*AT_ONCE, *LASTING, BY_OTHERS), asked.fault


class Wounds:
    """What strikes, asked at the points that every framework has."""

    def __init__(self):
        self.first = True
        self.model = None
        self._log = (asked.folder / "steps.log").open("a", buffering=1)

    def before(self, step):
        """A step is about to begin."""
        again = asked.fault == "exception_again" and step == asked.at
        if not (again or (step >= asked.at and ATTEMPT == 1 and not NOTE.exists())) or asked.fault == BY_OTHERS:
            return
        note()
        AT_ONCE.get(asked.fault, lambda: None)()
        weights = list(self.model.parameters()) if self.model is not None else []
        if asked.fault == "nan_weights":
            weights[0].data.fill_(math.nan)
        if asked.fault == "inf_gradient":
            weights[0].register_hook(lambda gradient: gradient * math.inf)

    def factor(self):
        """Return what the loss of this step is multiplied by."""
        if lasts("bad_batch", "bad_batch_skipped") and not (asked.folder / "spoilt").exists():
            (asked.folder / "spoilt").touch()
            return math.inf
        return math.nan if lasts("nan") else math.inf if lasts("inf") else 50.0 if lasts("spike") else 1.0

    def item(self):
        """A row of the data set is read, in this process or a worker."""
        if lasts("loader_stall"):
            wait_for_ever()
        if lasts("item_exception"):
            raise InjectedError("a row that cannot be read")
        if lasts("worker_killed") and torch.utils.data.get_worker_info() is not None:
            os.kill(os.getpid(), signal.SIGKILL)

    def validates(self):
        """A batch of a validation is made."""
        if lasts("validation_stall"):
            wait_for_ever()

    def made(self, step, loss):
        """A step was made."""
        finite = math.isfinite(float(loss))
        if self.first and self.model is not None:
            finite = finite and all(bool(torch.isfinite(parameter).all()) for parameter in self.model.parameters())
        self.first = False
        self._log.write("%.6f %d %d %d\n" % (time.time(), os.getpid(), step, finite))
        time.sleep(asked.every_s)


wounds = Wounds()
scaler = torch.amp.GradScaler("cpu") if asked.fault == "bad_batch_skipped" else None
"""Skips the step of a batch whose gradients are no numbers."""


class Rows(torch.utils.data.Dataset):
    """Rows of a linear problem."""

    def __init__(self, count=BATCH * BATCHES, *, trains=True):
        self.count, self.trains = count, trains

    def __len__(self):
        return self.count

    def __getitem__(self, row):
        if self.trains:
            wounds.item()
        values = torch.sin(torch.arange(8.0) * (row + 1))
        return values, values.sum().reshape(1)


def network():
    """Return the small model of the loops and of Lightning."""
    parts = [torch.nn.Linear(8, 32), torch.nn.BatchNorm1d(32), torch.nn.ReLU(), torch.nn.Linear(32, 1)]
    return torch.nn.Sequential(*parts)


def validate(model, rows):
    """Draw some batches with gradients off."""
    model.eval()
    with torch.no_grad():
        for values, _ in rows:
            model(values.to(asked.device))
            wounds.validates()
    model.train()


def one_step(model, optimizer, values, sums):
    """Make a step; return its loss."""
    loss = (model(values.to(asked.device)) - sums.to(asked.device)).square().mean() * wounds.factor()
    optimizer.zero_grad()
    if scaler is None:
        loss.backward()
        optimizer.step()
    else:
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return loss.detach()


def parts_of_a_loop():
    """Return model, optimizer, loader and validation rows."""
    torch.manual_seed(3)
    model = network().to(asked.device)
    wounds.model = model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = torch.utils.data.DataLoader(Rows(), BATCH, shuffle=True, num_workers=asked.workers)
    return model, optimizer, loader, torch.utils.data.DataLoader(Rows(BATCH * 3, trains=False), BATCH)


def train_loop():
    """A loop of somebody's own that asks for snapshots."""
    from rocm_agent import snapshots

    model, optimizer, loader, rows = parts_of_a_loop()
    state = snapshots.restore(model=model, optimizer=optimizer, loader=loader)
    for _ in range(state.epoch, asked.epochs):
        for values, sums in loader:
            wounds.before(state.step + 1)
            loss = one_step(model, optimizer, values, sums)
            snapshots.step(state, loss=loss)
            wounds.made(state.step, loss)
        validate(model, rows)


def train_own():
    """A loop of somebody's own that knows nothing of us and keeps files of its own."""
    model, optimizer, loader, rows = parts_of_a_loop()
    asked.saves.mkdir(exist_ok=True)
    step = 0
    if asked.resume:
        found = torch.load(asked.resume, weights_only=True)
        model.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])
        step = found["step"]
    while step < asked.epochs * BATCHES:
        for values, sums in loader:
            wounds.before(step + 1)
            loss = one_step(model, optimizer, values, sums)
            step += 1
            wounds.made(step, loss)
            if step % SAVE_EVERY == 0:
                save_own(model, optimizer, step)
            if step == asked.epochs * BATCHES:
                break
        validate(model, rows)


def save_own(model, optimizer, step):
    """Keep the state, whole or not at all, slowly where that is the fault."""
    part = asked.saves / "ckpt.part"
    with part.open("wb") as file:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, file)
        if lasts("slow_save"):
            time.sleep(3.0)
        file.flush()
        os.fsync(file.fileno())
    part.rename(asked.saves / ("ckpt-%06d.pt" % step))
    for old in sorted(asked.saves.glob("ckpt-*.pt"))[:-KEPT]:
        old.unlink()


def train_lightning():
    """The same model under Lightning."""
    import lightning

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = network()

        def training_step(self, batch, index):
            self.loss = torch.nn.functional.mse_loss(self.net(batch[0]), batch[1]) * wounds.factor()
            return self.loss

        def validation_step(self, batch, index):
            wounds.validates()
            self.log("loss", torch.nn.functional.mse_loss(self.net(batch[0]), batch[1]))

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

        def on_train_batch_start(self, *_):
            wounds.before(self.trainer.global_step + 1)

        def on_train_batch_end(self, *_):
            wounds.made(self.trainer.global_step, self.loss.detach())

    lightning.seed_everything(7, verbose=False)
    wounds.model = Model()
    trainer = lightning.Trainer(
        max_epochs=asked.epochs, accelerator="cpu" if asked.device == "cpu" else "gpu", devices=1, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=str(asked.folder),
    )  # fmt: skip
    loader = torch.utils.data.DataLoader(Rows(), BATCH, shuffle=True, num_workers=asked.workers)
    trainer.fit(wounds.model, loader, torch.utils.data.DataLoader(Rows(BATCH * 3, trains=False), BATCH))


def train_transformers():
    """A tiny language model under the Hugging Face Trainer."""
    import transformers

    class Sentences(torch.utils.data.Dataset):
        def __init__(self, count, *, trains):
            self.count, self.trains = count, trains

        def __len__(self):
            return self.count

        def __getitem__(self, row):
            if self.trains:
                wounds.item()
            else:
                wounds.validates()
            words = torch.full((12,), row % 50 + 5)
            return {"input_ids": words, "labels": words.clone()}

    class Model(transformers.BertForMaskedLM):
        def forward(self, **inputs):
            found = super().forward(**inputs)
            self.last = found.loss = found.loss * (wounds.factor() if self.training else 1.0)
            return found

    class Following(transformers.TrainerCallback):
        def on_step_begin(self, args, state, control, **_):
            wounds.before(state.global_step + 1)

        def on_step_end(self, args, state, control, **_):
            wounds.made(state.global_step, wounds.model.last.detach())

    torch.manual_seed(5)
    shape = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    wounds.model = Model(transformers.BertConfig(**shape, intermediate_size=48, max_position_embeddings=16))
    arguments = transformers.TrainingArguments(
        output_dir=str(asked.folder / "out"), num_train_epochs=asked.epochs, per_device_train_batch_size=BATCH,
        seed=11, save_strategy="no", eval_strategy="epoch", report_to=[], use_cpu=asked.device == "cpu",
        disable_tqdm=True, logging_steps=1, learning_rate=1e-3, dataloader_num_workers=asked.workers,
        remove_unused_columns=False,
    )  # fmt: skip
    rows, held_out = Sentences(BATCH * BATCHES, trains=True), Sentences(8, trains=False)
    transformers.Trainer(
        wounds.model, arguments, train_dataset=rows, eval_dataset=held_out, callbacks=[Following()]
    ).train()


def spoil_images(module, inputs):
    """Hurt the images of a batch of ultralytics."""
    factor = wounds.factor() if module.training and isinstance(inputs[0], dict) else 1.0
    if factor != 1.0:
        inputs[0]["img"].mul_(factor)


def spoil_losses(module, inputs, losses):
    """Hurt the losses of a batch of ultralytics."""
    factor = wounds.factor() if module.training and isinstance(inputs[0], dict) else 1.0
    return (losses[0] * factor, {name: item * factor for name, item in losses[1].items()}) if factor != 1.0 else None


def train_ultralytics():
    """A narrow YOLOv8 on the images in the folder `data`."""
    from ultralytics import YOLO
    from ultralytics.data.dataset import YOLODataset
    from ultralytics.models.yolo.detect import DetectionTrainer
    from ultralytics.utils import torch_utils

    class Trainer(DetectionTrainer):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.args.workers = asked.workers  # on the processor ultralytics takes them away

    def item(self, row, original=YOLODataset.__getitem__):
        if self.augment:
            wounds.item()
        return original(self, row)

    def begins(trainer):
        wounds.model = trainer.model
        if scaler is None:
            trainer.model.register_forward_pre_hook(spoil_images)
        else:  # a spoilt image would stay in the statistics of batch norm, whatever the scaler skips
            trainer.scaler = scaler
            trainer.model.register_forward_hook(spoil_losses)

    # On the processor ultralytics sets torch to eight threads by itself, whatever OMP_NUM_THREADS says.
    torch_utils.NUM_THREADS = 1
    YOLODataset.__getitem__ = item
    model = YOLO(str(asked.folder / "yolov8n.yaml"))
    model.add_callback("on_train_start", begins)
    model.add_callback("on_train_batch_start", lambda trainer: wounds.before(trainer.ema.updates + 1))
    model.add_callback("on_train_batch_end", lambda trainer: wounds.made(trainer.ema.updates, trainer.loss.detach()))
    model.add_callback("on_val_batch_start", lambda _: wounds.validates())
    model.train(
        trainer=Trainer, data=str(asked.folder / "data/data.yaml"), project=str(asked.folder), name="run",
        exist_ok=True, epochs=asked.epochs, imgsz=32, batch=2, nbs=2, workers=asked.workers, amp=False, plots=False,
        device=asked.device.replace("cuda", "0"), patience=0, seed=1, mosaic=0.0, close_mosaic=0,
    )  # fmt: skip


{"loop": train_loop, "own": train_own, "lightning": train_lightning, "transformers": train_transformers,
 "ultralytics": train_ultralytics}[asked.framework]()  # fmt: skip
(asked.folder / "done").touch()
