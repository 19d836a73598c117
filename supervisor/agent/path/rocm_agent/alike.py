"""Records a step that differs from the one before in nothing but its numbers, in one call.

Most steps differ from the one before in their time, loss, gradient norm and wait only. What else a record holds is that
of the last one written in full, as happens four times a second and after whatever may have changed it; a command is
looked at then. Each call here costs several times what it does in a loop: after a step of the training the processor's
caches hold nothing of ours.
"""

from __future__ import annotations

from typing import Any

from . import batch_count, remedies, tuning
from .layout import CHECK_XOR, HEAD_OFFSET, HEADER_BYTES, KNOWN_BEGINS, KNOWN_DATA_WAIT, KNOWN_GRAD_NORM
from .recorder import FLOAT_LIMIT, RECORD_BYTES, Recorder, clamp_to_float32

# Words of 8 and of 4 bytes are written, which touches less of the processor's caches than struct does.
FIRST_WORD, RECORD_WORDS, HEAD_WORD = HEADER_BYTES // 8, RECORD_BYTES // 8, HEAD_OFFSET // 8
HAS_GRAD_NORM, HAS_DATA_WAIT = KNOWN_GRAD_NORM << 32, KNOWN_DATA_WAIT << 32
OF_ONE_STEP = HAS_GRAD_NORM | HAS_DATA_WAIT | KNOWN_BEGINS << 32
drawn = batch_count.drawn


class AlikeSteps:
    """What steps have in common with the newest record of `recorder`."""

    __slots__ = ("_capacity", "_held_high", "_held_low", "_lr", "_marks", "_recorded_lr", "_recorder")

    def __init__(self, recorder: Recorder) -> None:
        self._recorder, self._capacity = recorder, recorder.capacity
        self._lr, self._recorded_lr = None, 0.0  # type: Any, float
        """The newest learning rate, and what a record has of it."""
        first = FIRST_WORD + (recorder.written - 1) % self._capacity * RECORD_WORDS
        self._marks = recorder.words[first + 3] & ~OF_ONE_STEP
        """The epoch and what is known."""
        self._held_low, self._held_high = recorder.halves[2 * first + 13] << 32, recorder.halves[2 * first + 14]
        """Memory of the GPU."""

    def takes_lr(self, lr: Any) -> bool:
        """Whether steps with this learning rate are alike: one that is no float may change and be the same object."""
        if type(lr) is not float or not abs(lr * remedies.lr_factor) <= FLOAT_LIMIT:
            return False
        self._lr, self._recorded_lr = lr, lr * remedies.lr_factor
        return True

    def record(self, watch: Any, optimizer: Any, now_ns: int) -> bool:
        """Record the step that `optimizer` has made of what `watch` saw; return False where it is not alike.

        It raises for what is no number or one that its field does not hold. Nothing is recorded then, nor with False.
        """
        loss, grad_norm, lr = watch.loss, watch.grad_norm, optimizer.param_groups[0]["lr"]
        if type(loss) is not float or now_ns >= tuning.due_ns or id(optimizer) != watch.leads:
            return False
        if lr is not self._lr and not self.takes_lr(lr):
            return False
        recorder, marks = self._recorder, self._marks
        words, halves, floats = recorder.words, recorder.halves, recorder.floats
        head = recorder.written
        first = FIRST_WORD + head % self._capacity * RECORD_WORDS
        half = first + first
        head += 1
        if grad_norm is None:
            floats[half + 11] = 0.0
        elif grad_norm.is_cuda:
            return False
        else:
            marks |= HAS_GRAD_NORM
            norm = grad_norm.item()
            floats[half + 11] = norm if norm <= FLOAT_LIMIT else clamp_to_float32(norm)
        words[first + 6] = self._held_low  # its other half is the wait
        if watch.wait_ns:
            marks |= HAS_DATA_WAIT
            floats[half + 12] = watch.wait_ns / 1e9
        halves[half + 17] = head ^ CHECK_XOR  # raises once the number of records takes more than four bytes
        words[first] = head
        words[first + 1] = step = watch.step + 1
        words[first + 2] = now_ns
        words[first + 3] = marks
        recorder.doubles[first + 4] = loss
        floats[half + 10] = self._recorded_lr
        words[first + 7] = self._held_high | drawn.samples << 32
        halves[half + 16] = drawn.tokens
        recorder.written = words[HEAD_WORD] = head
        watch.step, watch.last_ns = step, now_ns
        watch.loss = watch.grad_norm = None
        watch.wait_ns = drawn.samples = drawn.tokens = 0
        if recorder.is_elsewhere:
            recorder.stage, recorder.aside = watch.passes.take_stage(), 0
        return True
