"""How much memory each family needs beside operands and results, in elements; it allocates nothing.

Every number is an upper bound of what lives at one moment in the family's code; a test measures them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Tuple

from .depthwise import Axis, forward_axes, gradient_axes
from .subpixel import taps

if TYPE_CHECKING:
    from .geometry import Geometry


class Need(NamedTuple):
    """Elements of workspace."""

    a_sample: int
    fixed: int = 0
    """Whatever the batch."""


class Sizes:
    """One convolution's numbers of elements; `x` is (N, C, H, W), `weight` (O, C / groups, kh, kw)."""

    def __init__(self, x: Tuple[int, ...], weight: Tuple[int, ...], shape: Geometry) -> None:
        self.shape = shape
        self.channels, self.height, self.width = x[1:]
        self.outputs = weight[0]
        self.inside = x[1] * x[2] * x[3]
        self.outside = weight[0] * shape.out[0] * shape.out[1]
        self.weights = weight[0] * weight[1] * weight[2] * weight[3]
        (kh, kw), (ph, pw) = shape.kernel, shape.padding
        self.columns = x[1] * kh * kw * shape.out[0] * shape.out[1]
        self.padded = x[1] * (x[2] + 2 * ph) * (x[3] + 2 * pw)

    def _lowered(self) -> Tuple[int, int]:
        """Return the elements of T and of the padded input it is gathered from."""
        (kh, kw), (sh, sw), (ho, wo) = self.shape.kernel, self.shape.stride, self.shape.out
        rows = (ho - 1) * sh + kh
        return self.channels * rows * kw * wo, self.channels * rows * ((wo - 1) * sw + self._spread() + 1)

    def _lowered_gradient(self) -> Tuple[int, int]:
        """Return the elements of D and of the padded dy it is gathered from."""
        rows = self.height + self.shape.kernel[0] - 1
        lines = self.outputs * rows
        return lines * self.shape.kernel[1] * self.width, lines * (self.width + self._spread())

    def _spread(self) -> int:
        return self.shape.dilation[1] * (self.shape.kernel[1] - 1)

    # --- im2col ---------------------------------------------------------------------------------------------------

    def columns_forward(self) -> Need:
        """Columns and what they are gathered from."""
        return Need(self.padded + self.columns, self.weights)

    def columns_input(self) -> Need:
        """Columns of the gradient."""
        return Need(self.outside + self.columns, self.weights)

    def columns_weight(self) -> Need:
        """As forward, and a weight a sample."""
        return Need(self.padded + self.columns + self.weights)

    def columns_of_gradient(self) -> Need:
        """Columns of dy, dy itself where it is not contiguous, and two weights a sample."""
        (kh, kw), pixels = self.shape.kernel, self.height * self.width
        return Need(self.outside + self.outputs * kh * kw * pixels + 2 * self.weights, 3 * self.weights)

    # --- MEC ------------------------------------------------------------------------------------------------------

    def mec_forward(self) -> Need:
        """T, and the padded input or the output as rows."""
        low, room = self._lowered()
        return Need(low + max(room, self.outside), self.weights)

    def mec_input(self) -> Need:
        """D, and the padded dy or dx as rows."""
        low, room = self._lowered_gradient()
        return Need(low + max(room, self.inside), 2 * self.weights)

    def mec_weight(self) -> Need:
        """T, and the padded input or dy as rows; a weight a row of output."""
        low, room = self._lowered()
        return Need(low + max(room, self.outside), (self.shape.out[0] + 2) * self.weights)

    def mec_both(self) -> Need:
        """D, and the padded dy, x or dx as rows; a weight a row of input."""
        low, room = self._lowered_gradient()
        return Need(low + max(room, self.inside), (self.height + 3) * self.weights)

    def direct_forward(self) -> Need:
        """T and the padded input."""
        return Need(sum(self._lowered()), self.weights)

    def direct_input(self) -> Need:
        """D and the padded dy."""
        return Need(sum(self._lowered_gradient()), 2 * self.weights)

    def direct_weight(self) -> Need:
        """T and the padded input; a weight a row of output."""
        return Need(sum(self._lowered()), (self.shape.out[0] + 2) * self.weights)

    def direct_both(self) -> Need:
        """D and the padded dy; a weight a row of input."""
        return Need(sum(self._lowered_gradient()), (self.height + 3) * self.weights)

    # --- shifts ---------------------------------------------------------------------------------------------------

    def _shifted(self, channels: int, outputs: int, width: int, size: Tuple[int, int], kernel: Tuple[int, int]) -> int:
        """Return the elements a sample of what is shifted and of the products, for `width` columns of `channels`."""
        line = self._line(width, size[1])
        return channels * (size[0] + kernel[0] - 1) * line + outputs * size[0] * line

    def _line(self, width: int, outputs: int) -> int:
        """Return the most columns a sample takes in a row: its own and margins, all rounded up to 16 bytes."""
        return max(width, outputs) + 2 * self._spread() + 48

    def shifted_forward(self) -> Need:
        """The padded input and the padded output."""
        need = self._shifted(self.channels, self.outputs, self.width, self.shape.out, self.shape.kernel)
        return Need(need, 2 * self.weights)

    def shifted_input(self) -> Need:
        """The padded dy and the padded dx."""
        size = (self.height, self.width)
        return Need(
            self._shifted(self.outputs, self.channels, self.shape.out[1], size, self.shape.kernel), 3 * self.weights
        )

    def shifted_weight(self) -> Need:
        """The padded input and dy; a weight's row a row of output."""
        (ho, wo), kh = self.shape.out, self.shape.kernel[0]
        line = self._line(self.width, wo)
        return Need((self.channels * (ho + kh - 1) + self.outputs * ho) * line, (ho + 2) * self.weights)

    def _phases(self) -> Tuple[int, int, Tuple[int, int], Tuple[int, int]]:
        (rows, _, _), (columns, _, _) = (
            taps(k, s, p) for k, s, p in zip(self.shape.kernel, self.shape.stride, self.shape.padding)
        )
        (sh, sw) = self.shape.stride
        cut = (-(-self.height // sh), -(-self.width // sw))
        fixed = 4 * sh * sw * self.outputs * self.channels * rows * columns
        return self.channels * sh * sw, fixed, cut, (rows, columns)

    def subpixel_input(self) -> Need:
        """Lowered dy, and padded or the phases' images; those once more where they are cut."""
        images, fixed, (high, wide), (rows, columns) = self._phases()
        lines = self.outputs * (high + rows - 1)
        low, room, dx = lines * columns * wide, lines * (wide + columns - 1), images * high * wide
        return Need(max(low + max(room, dx), 2 * dx), fixed)

    def shifted_strided_input(self) -> Need:
        """The padded dy and the phases' images; those once more where they are cut."""
        images, fixed, cut, kernel = self._phases()
        need = self._shifted(self.outputs, images, self.shape.out[1], cut, kernel)
        return Need(max(need, images * cut[0] * (self._line(self.shape.out[1], cut[1]) + cut[1])), fixed)

    # --- Winograd -------------------------------------------------------------------------------------------------

    def _winograd(self, channels: int, outputs: int, size: Tuple[int, int]) -> Need:
        high, wide = -(-size[0] // 4), -(-size[1] // 4)
        room, tiles = (4 * high + 2) * (4 * wide + 2), high * wide
        made = channels * (room + 72 * tiles)
        return Need(max(made, 36 * (channels + outputs) * tiles, 52 * outputs * tiles), 6 * self.weights)

    def winograd_forward(self) -> Need:
        """The input's tiles twice, or transformed ones of input and output."""
        return self._winograd(self.channels, self.outputs, self.shape.out)

    def winograd_input(self) -> Need:
        """As forward, from dy to dx."""
        return self._winograd(self.outputs, self.channels, (self.height, self.width))

    def winograd_weight(self) -> Need:
        """The gradient's transformed tiles, and dy's own or the input's twice."""
        high, wide = -(-self.shape.out[0] // 4), -(-self.shape.out[1] // 4)
        room, tiles = (4 * high + 2) * (4 * wide + 2), high * wide
        more = max(self.channels * (room + 72 * tiles), self.outputs * (room + 16 * tiles))
        return Need(36 * self.outputs * tiles + more, 6 * self.weights)

    # --- 1x1 ------------------------------------------------------------------------------------------------------

    def _picked(self) -> int:
        return self.channels * self.shape.out[0] * self.shape.out[1]

    def pointwise(self) -> Need:
        """The pixels that a stride picks."""
        return Need(self._picked() if self.shape.stride != (1, 1) else 0, self.weights)

    def pointwise_weight(self) -> Need:
        """The pixels that a stride picks, and a weight a sample."""
        return Need(self.pointwise().a_sample + self.weights)

    def pointwise_whole(self) -> Need:
        """Input and output once more each, and what a stride picks."""
        return Need(2 * self._picked() + 2 * self.outside, 2 * self.weights)

    # --- depthwise ------------------------------------------------------------------------------------------------

    def _tiles(self, axes: Tuple[Axis, Axis], inputs: int, outputs: int) -> Tuple[int, int, int, int]:
        """Return a sample's elements of windows, tiles and padded maps, from `inputs` to `outputs` maps, and M's."""
        many = axes[0].count * axes[1].count
        tile, window = axes[0].tile * axes[1].tile, axes[0].window * axes[1].window
        room = [(axis.count - 1) * axis.step + axis.window for axis in axes]
        matrix = (self.outputs + self.shape.kernel[0] * self.shape.kernel[1]) * window * tile
        return inputs * window * many, outputs * tile * many, inputs * room[0] * room[1], matrix

    def tiles_forward(self) -> Need:
        """The windows, and what they are gathered from or the output's tiles; those twice."""
        windows, tiles, room, matrix = self._tiles(forward_axes(self.shape), self.channels, self.outputs)
        return Need(max(windows + max(room, tiles), 2 * tiles), matrix)

    def tiles_input(self) -> Need:
        """As forward, from dy to dx."""
        axes = gradient_axes(self.shape, (self.height, self.width))
        windows, tiles, room, matrix = self._tiles(axes, self.outputs, self.channels)
        return Need(max(windows + max(room, tiles), 2 * tiles), 2 * matrix)

    def tiles_weight(self) -> Need:
        """The tiles of dy, padded before, and the windows of x with what they are gathered from."""
        windows, tiles, room, matrix = self._tiles(forward_axes(self.shape), self.channels, self.outputs)
        return Need(tiles + max(tiles, windows + room), 2 * matrix)

    def tiles_both(self) -> Need:
        """The gradient's windows, and what they are gathered from, or dx's tiles twice, as large as those of x."""
        axes = gradient_axes(self.shape, (self.height, self.width))
        windows, tiles, room, matrix = self._tiles(axes, self.outputs, self.channels)
        return Need(windows + max(room, 2 * tiles), 3 * matrix)

    def taps(self) -> Need:
        """The products of every tap, and the padded input."""
        return Need(self.padded + self.outside * self.shape.kernel[0] * self.shape.kernel[1])

    def taps_input(self) -> Need:
        """The products of every tap, and their sum over a channel's outputs."""
        products = self.outside * self.shape.kernel[0] * self.shape.kernel[1]
        return Need(self.outside + products + (self.columns if self.outputs > self.channels else 0))

    def dense(self) -> Need:
        """M, and the result once more."""
        pixels = self.height * self.width * self.shape.out[0] * self.shape.out[1]
        many = self.channels + self.shape.kernel[0] * self.shape.kernel[1]
        return Need(max(self.inside, self.outside), many * pixels)
