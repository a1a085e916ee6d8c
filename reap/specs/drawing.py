"""Random choices, with or without a mask of those that are allowed.

Several choices are drawn together: `sizes` says among how many each one is, and a mask holds their flags side by side,
`[*lead, sum(sizes)]`.
"""

from __future__ import annotations

import torch

from reap.errors import SpecMismatch
from reap.specs.faults import dtype_name, first_index, shape_text


def draw(
    sizes: tuple[int, ...],
    lead: tuple[int, ...],
    *,
    device: torch.device,
    generator: torch.Generator | None,
    mask: torch.Tensor | None,
) -> torch.Tensor:
    """Independent uniform choices, int64 `[*lead, len(sizes)]`.

    Args:
        sizes: the number of options of each choice.
        lead: the shape in front.
        device: the device of the result.
        generator: the source of random numbers, on any device; torch's own if None.
        mask: True where a value is allowed, bool or whole numbers, broadcast to `[*lead, sum(sizes)]`.

    Raises:
        SpecMismatch: the mask has a wrong shape or dtype, or allows nothing somewhere.
    """
    source = generator.device if generator is not None else device
    if mask is None:
        columns = [torch.randint(size, lead, generator=generator, device=source) for size in sizes]
    else:
        blocks = as_flags(mask, (*lead, sum(sizes))).to(source).split(sizes, -1)
        _require_some(blocks)
        columns = [_pick(block, generator) for block in blocks]
    return torch.stack(columns, -1).to(device)


def encode(indices: torch.Tensor, sizes: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """One-hot blocks side by side, `[*lead, sum(sizes)]`, from indices `[*lead, len(sizes)]`.

    Example:
        >>> encode(torch.tensor([1, 0]), (2, 3), torch.int64)
        tensor([0, 1, 1, 0, 0])
    """
    blocks = [
        column.unsqueeze(-1) == torch.arange(size, device=indices.device)
        for column, size in zip(indices.unbind(-1), sizes, strict=True)
    ]
    return torch.cat(blocks, -1).to(dtype)


def uniform_integers(
    low: torch.Tensor, high: torch.Tensor, shape: tuple[int, ...], generator: torch.Generator | None
) -> torch.Tensor:
    """Whole numbers from [low, high] element by element, int64 `shape`; any bounds that int64 holds."""
    source = generator.device if generator is not None else low.device
    bits = torch.empty(shape, dtype=torch.int64, device=source)
    bits = bits.random_(torch.iinfo(torch.int64).min, None, generator=generator).to(low.device)
    size = high - low + 1
    # A range of more than 2**63 numbers has wrapped to a size that is not positive; there one step of wrapping
    # arithmetic brings `low + bits` into the range.
    wrapped = low + bits
    wide = torch.where((wrapped >= low) & (wrapped <= high), wrapped, wrapped - size)
    return torch.where(size > 0, low + bits.remainder(size.clamp(min=1)), wide)


def uniform_floats(
    low: torch.Tensor, high: torch.Tensor, shape: tuple[int, ...], generator: torch.Generator | None
) -> torch.Tensor:
    """Floats from [low, high]: uniform; exponential away from a lone bound; normal without bounds."""
    source = generator.device if generator is not None else low.device

    def fresh() -> torch.Tensor:
        return torch.empty(shape, dtype=low.dtype, device=source)

    weight = fresh().uniform_(generator=generator).to(low.device)
    # Not low + weight * (high - low): the difference of two huge bounds is infinite.
    result = low * (1 - weight) + high * weight
    bounded_below, bounded_above = low.isfinite(), high.isfinite()
    if not bool((bounded_below & bounded_above).all()):
        tail = fresh().exponential_(generator=generator).to(low.device)
        normal = fresh().normal_(generator=generator).to(low.device)
        one_sided = torch.where(bounded_below, low + tail, torch.where(bounded_above, high - tail, normal))
        result = torch.where(bounded_below & bounded_above, result, one_sided)
    return torch.clamp(result, low, high)


def _pick(allowed: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
    counts = allowed.sum(-1)
    share = torch.rand(counts.shape, dtype=torch.float64, generator=generator, device=allowed.device)
    rank = torch.minimum((share * counts).to(torch.int64), counts - 1)
    return (allowed.cumsum(-1) <= rank.unsqueeze(-1)).sum(-1)


def as_flags(mask: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """A mask as bool of a shape that it broadcasts to.

    Raises:
        SpecMismatch: it does not broadcast, or holds floats.
    """
    if mask.dtype.is_floating_point:
        raise SpecMismatch(
            f"action mask: expected dtype bool, found {dtype_name(mask.dtype)}. Give True where an action is allowed."
        )
    try:
        return mask.to(torch.bool).broadcast_to(shape)
    except RuntimeError:
        raise SpecMismatch(
            f"action mask: expected shape {shape_text(shape)} or one that broadcasts to it, "
            f"found shape {shape_text(mask.shape)}."
        ) from None


def _require_some(blocks: tuple[torch.Tensor, ...]) -> None:
    for choice, block in enumerate(blocks):
        empty = ~block.any(-1)
        if bool(empty.any()):
            places = [f"at index {first_index(empty)}"] if empty.ndim else []
            places += [f"for choice {choice}"] if len(blocks) > 1 else []
            at = "".join(f" {place}" for place in places)
            raise SpecMismatch(
                f"action mask: expected at least one allowed action, found none{at}: all of the mask is False there. "
                "Let the env allow one action, if only to end the episode."
            )
