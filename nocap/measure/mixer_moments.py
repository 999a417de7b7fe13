"""The moments of a mixer: the scores, their softmax, the weighted sum; or one fused kernel.

They are told by the operations that the mixer calls, whichever option it is of: by their names as
torch's profiler and dispatcher have them. Where the operations are another pattern, the mixer is
not taken apart. No torch.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.autograd.profiler_util import FunctionEvent

PRODUCT = "product"  # scores
SOFTMAX = "softmax"
VALUES = "values"  # weights·values
FUSED = "fused"  # one kernel for these three
AROUND = "around"  # what is done around it
MOMENTS = (PRODUCT, SOFTMAX, VALUES, FUSED, AROUND)

_PRODUCTS = {"matmul", "bmm", "mm", "baddbmm", "addmm", "einsum", "linear"}
_SDPA = "scaled_dot_product_attention"
# as the profiler names a call of a compiled function, such as FlexAttention
_COMPILED = "Torch-Compiled Region"


@dataclass(kw_only=True, slots=True)
class Call:
    """One call of a mixer, whose operations come in their order. What they are together is known at
    its end."""

    softmaxes: int = 0
    products: list[bool] = field(default_factory=list)  # whether each came after a softmax
    fused: bool = False

    def add(self, name: str) -> str:
        """Take the next operation; return its moment, which `moment` makes the final one."""
        if is_fused(name):
            self.fused = True
            return FUSED
        if "softmax" in name:
            self.softmaxes += 1
            return SOFTMAX
        if name in _PRODUCTS:
            self.products.append(self.softmaxes > 0)
        if self.softmaxes:
            return VALUES
        return PRODUCT

    def moment(self, added: str) -> str | None:
        """Return the moment of an operation for which `add` returned `added`. None: this mixer is
        not taken apart."""
        if self.fused:
            return FUSED if added == FUSED else AROUND
        if not self.is_apart:
            return None
        return added

    @property
    def is_apart(self) -> bool:
        """Say whether the mixer is taken apart."""
        is_plain = self.softmaxes == 1 and False in self.products and True in self.products
        return self.fused or is_plain


def is_fused(name: str) -> bool:
    """Return whether an operation is a kernel that holds the scores, their softmax and the weighted
    sum."""
    inner = "scaled_dot_product" in name and name != _SDPA and "math" not in name
    return inner or name.startswith(_COMPILED) or "flex_attention" in name


class Nodes:
    """Which moment of which mixer made each node of autograd, by the node's sequence number."""

    def __init__(self) -> None:
        self._numbers = defaultdict[str, list[int]](list)
        self._moments = defaultdict[str, list[tuple[Call, str]]](list)

    def add(self, path: str, number: int, call: Call, added: str) -> None:
        """Note an operation of the mixer at `path`, whose numbers ascend."""
        self._numbers[path].append(number)
        self._moments[path].append((call, added))

    def begun(self, path: str, number: int) -> tuple[Call, str] | None:
        """Return the operation that began last before the node was made, where `add` got the
        numbers that were next when each began."""
        at = bisect_right(self._numbers[path], number)
        if at == 0:
            return None
        return self._moments[path][at - 1]

    def ended(self, path: str, number: int) -> tuple[Call, str] | None:
        """Return the operation in which the node was made, where `add` got the numbers that were
        last when each ended."""
        at = bisect_left(self._numbers[path], number)
        moments = self._moments[path]
        if at == len(moments):
            return None
        return moments[at]


# --- a mixer as the profiler saw it ---------------------------------------------------------------


def operations(mixer: FunctionEvent, call: Call) -> Iterator[tuple[FunctionEvent, str]]:
    """Yield each event inside a mixer's, in order, with what `call.add` says of it. What an
    operation calls is of its own moment."""
    for child in sorted(mixer.cpu_children, key=lambda event: event.time_range.start):
        yield from _operation(child, call)


def _operation(event: FunctionEvent, call: Call) -> Iterator[tuple[FunctionEvent, str]]:
    name = event.name.removeprefix("aten::")
    if name == _SDPA and _holds_fused(event):
        for inner in (event, *_inside(event)):
            yield inner, FUSED
        call.fused = True
    elif name == _SDPA or "attention_math" in name:  # made of plain operations
        yield event, VALUES if call.softmaxes else PRODUCT
        yield from operations(event, call)
    else:
        moment = call.add(name)
        for inner in (event, *_inside(event)):
            yield inner, moment


def _holds_fused(event: FunctionEvent) -> bool:
    return any(is_fused(inner.name.removeprefix("aten::")) for inner in _inside(event))


def _inside(event: FunctionEvent) -> Iterator[FunctionEvent]:
    for child in event.cpu_children:
        yield child
        yield from _inside(child)
