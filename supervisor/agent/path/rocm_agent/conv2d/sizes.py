"""The memory that each family needs in addition to operands and results, in elements.

Every number is an upper bound of what lives at one moment in the family's code; a test measures them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Tuple

from .depthwise import Axis, forward_axes, gradient_axes
from .direct_strips import rows_of_strip
from .subpixel import taps
from .sums import HALVES, LONGEST, multiplies_wide
from .winograd_strips import Strips

if TYPE_CHECKING:
    import torch

    from .geometry import Geometry


class Need(NamedTuple):
    """Elements of workspace."""

    a_sample: int
    fixed: int = 0
    """Whatever the batch."""


class Sums(NamedTuple):
    """What the shares of a sum take, by the operands' dtype and the device."""

    width: int
    """Elements of the operands' dtype that an element of a share is as large as."""
    casts: bool
    """Whether the operands are first made float32, since the device multiplies halves to halves."""
    longest: int
    """Products that are added by one product; 0 for any number."""

    @classmethod
    def of(cls, dtype: torch.dtype, device: torch.device) -> Sums:
        """Return them for operands of that dtype on that device."""
        half = dtype in HALVES
        longest = LONGEST.get(device.type, {}).get(dtype, 0)
        return cls(2 if half else 1, half and not multiplies_wide(dtype, device), longest)


class Sizes:
    """One convolution's numbers of elements; `x` is (N, C, H, W), `weight` (O, C / groups, kh, kw)."""

    def __init__(
        self,
        x: Tuple[int, ...],
        weight: Tuple[int, ...],
        shape: Geometry,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.shape, self.sums, self.batch = shape, Sums.of(dtype, device), x[0]
        self.channels, self.height, self.width = x[1:]
        self.outputs = weight[0]
        self.inside = x[1] * x[2] * x[3]
        self.outside = weight[0] * shape.out[0] * shape.out[1]
        self.weights = weight[0] * weight[1] * weight[2] * weight[3]
        (kh, kw), (ph, pw) = shape.kernel, shape.padding
        self.columns = x[1] * kh * kw * shape.out[0] * shape.out[1]
        self.padded = x[1] * (x[2] + 2 * ph) * (x[3] + 2 * pw)

    def _lowered_elements(self) -> Tuple[int, int]:
        """Return the elements of T and of the padded input it is gathered from."""
        (kh, kw), (sh, sw), (ho, wo) = self.shape.kernel, self.shape.stride, self.shape.out
        rows = (ho - 1) * sh + kh
        return self.channels * rows * kw * wo, self.channels * rows * ((wo - 1) * sw + self._dilated_reach() + 1)

    def _lowered_gradient(self) -> Tuple[int, int]:
        """Return the elements of D and of the padded dy it is gathered from."""
        rows = self.height + self.shape.kernel[0] - 1
        lines = self.outputs * rows
        return lines * self.shape.kernel[1] * self.width, lines * (self.width + self._dilated_reach())

    def _dilated_reach(self) -> int:
        return self.shape.dilation[1] * (self.shape.kernel[1] - 1)

    def _sum_need(self, low: Need, shares: Need, length: int, products: int) -> Need:
        """Return what a gradient takes: `low`, and the shares of its sum, float32 where the operands are halves.

        The sum is made by so many `products` of that inner `length`.
        """
        width, casts, longest = self.sums
        fixed, share = shares.fixed, shares.a_sample
        if longest and length > longest:
            pieces = -(-length // longest) + 1
            fixed += (pieces if products < pieces else 2 * products) * self.weights
            share *= 2
        if casts:  # and what they are cast from, where nothing else references it
            more = 2 * (self.inside + self.outside)
            return Need(2 * low.a_sample + width * share + more, 2 * low.fixed + width * fixed)
        return Need(low.a_sample + width * share, low.fixed + width * fixed)

    # --- im2col ---------------------------------------------------------------------------------------------------

    def columns_forward(self) -> Need:
        """Columns and what they are gathered from."""
        return Need(self.padded + self.columns, self.weights)

    def columns_input(self) -> Need:
        """Columns of the gradient, of halves as wide as dx is before it is rounded."""
        width, casts, _ = self.sums
        if casts:
            return Need(2 * (self.outside + self.columns + self.inside), 4 * self.weights)
        rounded = self.inside * width if width > 1 else 0
        return Need(self.outside + width * self.columns + rounded, self.weights)

    def columns_weight(self) -> Need:
        """As forward, and a weight a sample."""
        low, length = Need(self.padded + self.columns), self.shape.out[0] * self.shape.out[1]
        return self._sum_need(low, Need(self.weights), length, self.batch * self.shape.groups)

    def columns_of_gradient(self) -> Need:
        """Columns of dy, dy itself where it is not contiguous, and two weights a sample."""
        (kh, kw), pixels = self.shape.kernel, self.height * self.width
        low = Need(self.outside + self.outputs * kh * kw * pixels + self.weights, 3 * self.weights)
        return self._sum_need(low, Need(self.weights), pixels, self.batch * self.shape.groups)

    # --- MEC ------------------------------------------------------------------------------------------------------

    def mec_forward(self) -> Need:
        """T, and the padded input or the output as rows."""
        low, room = self._lowered_elements()
        return Need(low + max(room, self.outside), self.weights)

    def mec_input(self) -> Need:
        """D, and the padded dy or dx as rows."""
        low, room = self._lowered_gradient()
        return Need(low + max(room, self.inside), 2 * self.weights)

    def mec_weight(self) -> Need:
        """T, and the padded input or dy as rows; a weight a row of output."""
        low, room = self._lowered_elements()
        shares, length = Need(0, (self.shape.out[0] + 2) * self.weights), self.batch * self.shape.out[1]
        return self._sum_need(Need(low + max(room, self.outside)), shares, length, self.shape.out[0])

    def mec_both(self) -> Need:
        """D, and the padded dy, x or dx as rows; a weight a row of input."""
        low, room = self._lowered_gradient()
        shares, length = Need(0, (self.height + 3) * self.weights), self.batch * self.width
        return self._sum_need(Need(low + max(room, self.inside)), shares, length, self.height)

    def direct_forward(self) -> Need:
        """T and the padded input."""
        return Need(sum(self._lowered_elements()), self.weights)

    def direct_input(self) -> Need:
        """D and the padded dy."""
        return Need(sum(self._lowered_gradient()), 2 * self.weights)

    def direct_weight(self) -> Need:
        """T and the padded input; a weight a row of output."""
        return Need(sum(self._lowered_elements()), (self.shape.out[0] + 2) * self.weights)

    def direct_both(self) -> Need:
        """D and the padded dy; a weight a row of input."""
        return Need(sum(self._lowered_gradient()), (self.height + 3) * self.weights)

    def _strip_elements(self, channels: int, stride: int, size: Tuple[int, int]) -> Tuple[int, int]:
        """Return the rows of a strip of the result and the elements that are lowered for them."""
        kernel = self.shape.kernel
        rows = rows_of_strip(channels, kernel, stride, size)
        return rows, ((rows - 1) * stride + kernel[0]) * kernel[1] * channels * size[1]

    def strips_forward(self) -> Need:
        """A strip's lowered rows, whatever the batch."""
        return Need(0, self._strip_elements(self.channels, self.shape.stride[0], self.shape.out)[1] + self.weights)

    def strips_input(self) -> Need:
        """The same of dy."""
        return Need(0, self._strip_elements(self.outputs, 1, (self.height, self.width))[1] + 2 * self.weights)

    def strips_strided_input(self) -> Need:
        """A strip's lowered rows of dy, and the phases' images, those twice where they are cut."""
        images, fixed, (high, wide), kernel = self._phase_elements()
        rows = rows_of_strip(self.outputs, kernel, 1, (high, wide))
        low = (rows + kernel[0] - 1) * kernel[1] * self.outputs * wide
        return Need(0, low + 2 * rows * images * wide + fixed)

    def strips_weight(self) -> Need:
        """As forward, and a weight a row of the strip."""
        rows, low = self._strip_elements(self.channels, self.shape.stride[0], self.shape.out)
        return Need(0, low + (rows + 2) * self.weights)

    # --- shifts ---------------------------------------------------------------------------------------------------

    def _shifted_elements(
        self, channels: int, outputs: int, width: int, size: Tuple[int, int], kernel: Tuple[int, int]
    ) -> int:
        """Return the elements a sample of what is shifted and of the products, for `width` columns of `channels`."""
        line = self._line_columns(width, size[1])
        return channels * (size[0] + kernel[0] - 1) * line + outputs * size[0] * line

    def _line_columns(self, width: int, outputs: int) -> int:
        """Return the most columns a sample takes in a row: its own and margins, all rounded up to 16 bytes."""
        return max(width, outputs) + 2 * self._dilated_reach() + 48

    def shifted_forward(self) -> Need:
        """The padded input and the padded output."""
        need = self._shifted_elements(self.channels, self.outputs, self.width, self.shape.out, self.shape.kernel)
        return Need(need, 2 * self.weights)

    def shifted_input(self) -> Need:
        """The padded dy and the padded dx."""
        size = (self.height, self.width)
        return Need(
            self._shifted_elements(self.outputs, self.channels, self.shape.out[1], size, self.shape.kernel),
            3 * self.weights,
        )

    def shifted_weight(self) -> Need:
        """The padded input and dy; a weight's row a row of output."""
        (ho, wo), kh = self.shape.out, self.shape.kernel[0]
        line = self._line_columns(self.width, wo)
        low = Need((self.channels * (ho + kh - 1) + self.outputs * ho) * line)
        return self._sum_need(low, Need(0, (ho + 2) * self.weights), self.batch * line, ho)

    def _phase_elements(self) -> Tuple[int, int, Tuple[int, int], Tuple[int, int]]:
        (rows, _, _), (columns, _, _) = (
            taps(k, s, p) for k, s, p in zip(self.shape.kernel, self.shape.stride, self.shape.padding)
        )
        (sh, sw) = self.shape.stride
        cut = (-(-self.height // sh), -(-self.width // sw))
        fixed = 4 * sh * sw * self.outputs * self.channels * rows * columns
        return self.channels * sh * sw, fixed, cut, (rows, columns)

    def subpixel_input(self) -> Need:
        """Lowered dy, and padded or the phases' images; those once more where they are cut."""
        images, fixed, (high, wide), (rows, columns) = self._phase_elements()
        lines = self.outputs * (high + rows - 1)
        low, room, dx = lines * columns * wide, lines * (wide + columns - 1), images * high * wide
        return Need(max(low + max(room, dx), 2 * dx), fixed)

    def shifted_strided_input(self) -> Need:
        """The padded dy and the phases' images; those once more where they are cut."""
        images, fixed, cut, kernel = self._phase_elements()
        need = self._shifted_elements(self.outputs, images, self.shape.out[1], cut, kernel)
        return Need(max(need, images * cut[0] * (self._line_columns(self.shape.out[1], cut[1]) + cut[1])), fixed)

    # --- Winograd -------------------------------------------------------------------------------------------------

    def _winograd_need(self, channels: int, outputs: int, size: Tuple[int, int]) -> Need:
        high, wide = -(-size[0] // 4), -(-size[1] // 4)
        room, tiles = (4 * high + 2) * (4 * wide + 2), high * wide
        made = channels * (room + 72 * tiles)
        return Need(max(made, 36 * (channels + outputs) * tiles, 52 * outputs * tiles), 6 * self.weights)

    def winograd_forward(self) -> Need:
        """The input's tiles twice, or transformed ones of input and output."""
        return self._winograd_need(self.channels, self.outputs, self.shape.out)

    def winograd_input(self) -> Need:
        """As forward, from dy to dx."""
        return self._winograd_need(self.outputs, self.channels, (self.height, self.width))

    def winograd_weight(self) -> Need:
        """The gradient's transformed tiles, and dy's own or the input's twice."""
        high, wide = -(-self.shape.out[0] // 4), -(-self.shape.out[1] // 4)
        room, tiles = (4 * high + 2) * (4 * wide + 2), high * wide
        more = max(self.channels * (room + 72 * tiles), self.outputs * (room + 16 * tiles))
        low = Need(36 * self.outputs * tiles + more, 2 * self.weights)
        return self._sum_need(low, Need(0, 4 * self.weights), self.batch * tiles, 36)

    def winograd_strips(self, *, of_input: bool) -> Need:
        """A strip's padded maps, their tiles twice, the products and the result twice, whatever the batch.

        `of_input`: from dy to dx.
        """
        size = (self.height, self.width) if of_input else self.shape.out
        channels, outputs = (self.outputs, self.channels) if of_input else (self.channels, self.outputs)
        strips = Strips.of(self.batch, max(channels, outputs), size)
        room = channels * strips.samples * (4 * strips.rows + 2) * (4 * strips.wide + 2)
        return Need(0, room + (72 * channels + 68 * outputs) * strips.tiles + 6 * self.weights)

    # --- 1x1 ------------------------------------------------------------------------------------------------------

    def _picked_elements(self) -> int:
        return self.channels * self.shape.out[0] * self.shape.out[1]

    def pointwise(self) -> Need:
        """The pixels that a stride picks."""
        return Need(self._picked_elements() if self.shape.stride != (1, 1) else 0, self.weights)

    def pointwise_weight(self) -> Need:
        """The pixels that a stride picks, and a weight a sample."""
        length = self.shape.out[0] * self.shape.out[1]
        return self._sum_need(Need(self.pointwise().a_sample), Need(self.weights), length, self.batch)

    def pointwise_whole_weight(self) -> Need:
        """Input and dy once more each, and what a stride picks."""
        low, length = (
            Need(2 * self._picked_elements() + 2 * self.outside),
            self.batch * self.shape.out[0] * self.shape.out[1],
        )
        return self._sum_need(low, Need(0, 2 * self.weights), length, 1)

    def pointwise_whole(self) -> Need:
        """Input and output once more each, and what a stride picks."""
        return Need(2 * self._picked_elements() + 2 * self.outside, 2 * self.weights)

    # --- depthwise ------------------------------------------------------------------------------------------------

    def _tile_elements(self, axes: Tuple[Axis, Axis], inputs: int, outputs: int) -> Tuple[int, int, int, int]:
        """Return a sample's elements of windows, tiles and padded maps, from `inputs` to `outputs` maps, and M's."""
        many = axes[0].count * axes[1].count
        tile, window = axes[0].tile * axes[1].tile, axes[0].window * axes[1].window
        room = [(axis.count - 1) * axis.step + axis.window for axis in axes]
        matrix = (self.outputs + self.shape.kernel[0] * self.shape.kernel[1]) * window * tile
        return inputs * window * many, outputs * tile * many, inputs * room[0] * room[1], matrix

    def tiles_forward(self) -> Need:
        """The windows, and what they are gathered from or the output's tiles; those twice."""
        windows, tiles, room, matrix = self._tile_elements(forward_axes(self.shape), self.channels, self.outputs)
        return Need(max(windows + max(room, tiles), 2 * tiles), matrix)

    def tiles_input(self) -> Need:
        """As forward, from dy to dx."""
        axes = gradient_axes(self.shape, (self.height, self.width))
        windows, tiles, room, matrix = self._tile_elements(axes, self.outputs, self.channels)
        return Need(max(windows + max(room, tiles), 2 * tiles), 2 * matrix)

    def tiles_weight(self) -> Need:
        """The tiles of dy, padded before, and the windows of x with what they are gathered from."""
        windows, tiles, room, matrix = self._tile_elements(forward_axes(self.shape), self.channels, self.outputs)
        low, (down, across) = Need(tiles + max(tiles, windows + room)), forward_axes(self.shape)
        length = self.batch * down.count * across.count
        return self._matrices_need(low, 2 * matrix, length)

    def tiles_both(self) -> Need:
        """The gradient's windows, and what they are gathered from, or dx's tiles twice, as large as those of x."""
        axes = gradient_axes(self.shape, (self.height, self.width))
        windows, tiles, room, matrix = self._tile_elements(axes, self.outputs, self.channels)
        length = self.batch * axes[0].count * axes[1].count
        return self._matrices_need(Need(windows + max(room, 2 * tiles), matrix), 2 * matrix, length)

    def _matrices_need(self, low: Need, matrix: int, length: int) -> Need:
        """Return what a sum of matrices a channel takes, and their places."""
        pieces = 1 if not self.sums.longest else -(-length // self.sums.longest)
        most = max(2, pieces) if pieces > 1 else 1
        return self._sum_need(low, Need(0, most * matrix), 0, self.channels)

    def aten(self) -> Need:
        """The weight turned, and its gradient rounded and not."""
        return Need(0, (1 + self.sums.width) * self.weights)

    def taps(self) -> Need:
        """The products of every tap, and the padded input; of halves the products are float32, and their sum is."""
        products, width = self.outside * self.shape.kernel[0] * self.shape.kernel[1], self.sums.width
        wide = width * self.outside if width > 1 else 0
        return Need(self.padded + width * products + wide, width * self.weights)

    def taps_input(self) -> Need:
        """The products of every tap, and their sum over a channel's outputs."""
        products = self.outside * self.shape.kernel[0] * self.shape.kernel[1]
        made = products + (self.columns if self.outputs > self.channels else 0)
        width = self.sums.width
        return Need(self.outside + width * made + (width * self.inside if width > 1 else 0), width * self.weights)

    def dense(self) -> Need:
        """M, and the result once more."""
        pixels = self.height * self.width * self.shape.out[0] * self.shape.out[1]
        many = self.channels + self.shape.kernel[0] * self.shape.kernel[1]
        return Need(max(self.inside, self.outside), many * pixels)

    def dense_weight(self) -> Need:
        """M's gradient and the places, and the operands where they are not contiguous."""
        pixels = self.height * self.width * self.shape.out[0] * self.shape.out[1]
        many = self.channels + self.shape.kernel[0] * self.shape.kernel[1]
        return self._sum_need(Need(max(self.inside, self.outside)), Need(0, many * pixels), self.batch, self.channels)
