"""Operators that a program from a file may call: those whose memory safety does not depend on their arguments.

They check shapes, sizes and indices against the tensors that they get. Operators that trust their caller are left out
(`as_strided`, `resize_`, `set_`, sparse and quantised tensors, "unsafe" indices, kernels that compositions call after their own
checks, operators of other libraries), and so are those that read or write files. Every operator that is not listed is refused.

A few operators that policies need trust their caller in part. They are called through functions of reap, which check first:

    lstm.input, gru.input, rnn_*.input      the shapes of states and weights (oneDNN reads as much as the sizes say)
    scaled_dot_product_attention            the shapes of keys, values and masks
    _native_batch_norm_legit*               a mean, variance, weight and bias for each channel
    empty, empty_like, new_empty            return zeros: memory that nobody wrote may hold invalid bools
    div.Tensor_mode, pad                    only some of their modes
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

_ONE_BY_ONE = """
abs abs_ acos acosh add.Scalar add.Tensor add_.Scalar add_.Tensor addcdiv addcdiv_ addcmul addcmul_ __and__.Scalar
__and__.Tensor asin asinh atan atan2 atanh bitwise_and.Scalar bitwise_and.Tensor bitwise_not bitwise_or.Scalar
bitwise_or.Tensor bitwise_xor.Scalar bitwise_xor.Tensor ceil ceil_ celu celu_ clamp clamp_ clamp.Tensor clamp_.Tensor
clamp_max clamp_max_ clamp_max.Tensor clamp_min clamp_min_ clamp_min.Tensor clip clip.Tensor copysign.Scalar copysign.Tensor
cos cos_ cosh deg2rad digamma div.Scalar div.Tensor div_.Scalar div_.Tensor elu elu_ eq.Scalar eq.Tensor erf erf_ erfc
erfinv exp exp_ exp2 expm1 expm1_ fill.Scalar fill.Tensor fill_.Scalar fill_.Tensor floor floor_ floor_divide
floor_divide.Scalar fmax fmin fmod.Scalar fmod.Tensor frac ge.Scalar ge.Tensor gelu gelu_ greater.Scalar greater.Tensor
gt.Scalar gt.Tensor hardshrink hardsigmoid hardsigmoid_ hardswish hardswish_ hardtanh hardtanh_ heaviside hypot isclose
isfinite isinf isnan isneginf isposinf le.Scalar le.Tensor leaky_relu leaky_relu_ lerp.Scalar lerp.Tensor less.Scalar
less.Tensor lgamma log log_ log10 log1p log1p_ log2 log_sigmoid logaddexp logaddexp2 logical_and logical_not logical_or
logical_xor logit lt.Scalar lt.Tensor maximum minimum mish mish_ mul.Scalar mul.Tensor mul_.Scalar mul_.Tensor
multiply.Tensor nan_to_num nan_to_num_ ne.Scalar ne.Tensor neg neg_ negative __or__.Scalar __or__.Tensor pow.Scalar
pow.Tensor_Scalar pow.Tensor_Tensor pow_.Scalar prelu rad2deg reciprocal reciprocal_ relu relu_ relu6 relu6_
remainder.Scalar remainder.Tensor round round_ round.decimals rsqrt rsqrt_ rsub.Scalar rsub.Tensor selu selu_ sgn sigmoid
sigmoid_ sign sign_ silu silu_ sin sin_ sinc sinh softplus softshrink sqrt sqrt_ square square_ sub.Scalar sub.Tensor
sub_.Scalar sub_.Tensor subtract.Tensor tan tanh tanh_ threshold threshold_ true_divide.Tensor trunc trunc_ where.Scalar
where.ScalarOther where.ScalarSelf where.self xlogy.Tensor __xor__.Scalar __xor__.Tensor zero_
"""

_ALONG_DIMENSIONS = """
all all.dim all.dims amax amin aminmax any any.dim any.dims argmax argmin argsort cumprod cumsum glu linalg_norm
linalg_vector_norm _log_softmax log_softmax.int logcumsumexp logsumexp max max.dim max.other mean mean.dim median median.dim
min min.dim min.other norm.Scalar norm.ScalarOpt_dim prod prod.dim_int _safe_softmax _softmax softmax.int sort sort.stable
std std.correction std.dim std_mean.correction sum sum.dim_IntList topk var var.correction var.dim var_mean.correction
"""

_VIEWS_AND_COPIES = """
alias atleast_1d atleast_2d atleast_3d broadcast_tensors broadcast_to cat chunk clone concat constant_pad_nd contiguous copy
copy_ detach detach_ diagonal expand expand_as flatten.using_ints flip fliplr flipud hstack lift_fresh_copy matrix_H
meshgrid meshgrid.indexing movedim.int movedim.intlist mT narrow numpy_T permute ravel repeat repeat_interleave.self_int
reshape reshape_as roll rot90 select.int select_scatter slice.Tensor slice_scatter split.sizes split.Tensor split_with_sizes
squeeze squeeze.dim squeeze.dims stack swapaxes swapdims t tile to.device to.dtype to.dtype_layout to.other _to_copy
transpose.int tril triu type_as unbind.int unflatten.int unfold unsqueeze view view_as vstack
"""

_INDICES = """
embedding gather index.Tensor index_put index_put_ index_select masked_fill.Scalar masked_fill.Tensor masked_fill_.Scalar
masked_fill_.Tensor one_hot scatter.src scatter.value scatter_.src scatter_.value scatter_add scatter_add_ take_along_dim
"""

_NEW_TENSORS = """
arange arange.start arange.start_step eye eye.m full full_like linspace new_full new_ones new_zeros ones ones_like
scalar_tensor zeros zeros_like
"""

_CHANCE = """
bernoulli bernoulli.p bernoulli_.float bernoulli_.Tensor dropout exponential exponential_ multinomial normal_
normal.float_Tensor normal.Tensor_float normal.Tensor_Tensor normal_functional poisson rand rand_like randint randint.low
randint_like randint_like.low_dtype randn randn_like _sample_dirichlet _standard_gamma uniform uniform_
"""

_LAYERS = """
adaptive_avg_pool1d adaptive_avg_pool2d adaptive_max_pool2d addmm avg_pool1d avg_pool2d baddbmm batch_norm bmm conv1d
conv1d.padding conv2d conv2d.padding conv3d conv_transpose1d conv_transpose2d.input convolution cosine_similarity dot einsum
feature_dropout group_norm gru_cell instance_norm layer_norm linalg_cholesky linalg_cholesky_ex linear lstm_cell matmul
max_pool1d max_pool2d max_pool2d_with_indices max_pool3d max_pool3d_with_indices mm mse_loss mv native_group_norm
native_layer_norm outer rms_norm rnn_relu_cell rnn_tanh_cell vdot
"""

_QUESTIONS = """
_assert_async.msg _assert_scalar _assert_tensor_metadata is_nonzero item _local_scalar_dense sym_constrain_range
sym_constrain_range_for_size sym_numel sym_size.int sym_stride.int
"""


def _names(*texts: str) -> frozenset[str]:
    words = " ".join(texts).split()
    return frozenset(f"torch.ops.aten.{word if '.' in word else f'{word}.default'}" for word in words)


def _require(fits: bool, operator: str, what: str) -> None:
    if not fits:
        raise RuntimeError(f"{operator}: expected {what}; the program is refused")


def recurrent(operator: Any, gates: int, states: int) -> Callable[..., Any]:
    """An operator of recurrent layers, called only with states and weights of the right shapes.

    Args:
        operator: the operator.
        gates: rows of a weight for each unit.
        states: states for each layer: 2 for LSTM, else 1.
    """

    def checked(
        data: Tensor,
        hidden: Any,
        weights: Sequence[Tensor],
        has_biases: bool,
        layers: int,
        dropout: float,
        train: bool,
        both_ways: bool,
        batch_first: bool,
    ) -> Any:
        held = list(hidden) if states > 1 else [hidden]
        ways = 2 if both_ways else 1
        _require(data.ndim == 3 and len(held) == states and all(one.ndim == 3 for one in held), str(operator), "[T, B, input]")
        rows, units = data.shape[0 if batch_first else 1], held[0].shape[2]
        shapes: list[tuple[int, ...]] = []
        for layer in range(layers):
            inputs = data.shape[2] if layer == 0 else ways * units
            own = [(gates * units, inputs), (gates * units, units), *([(gates * units,)] * 2 if has_biases else [])]
            shapes += own * ways
        fits = all(tuple(one.shape) == (layers * ways, rows, units) for one in held)
        fits = fits and [tuple(weight.shape) for weight in weights] == shapes
        _require(fits, str(operator), "states and weights of the layers' shapes, no projections")
        kinds = {(one.dtype, one.device) for one in (data, *held, *weights)}
        _require(len(kinds) == 1, str(operator), "states and weights of one dtype")
        return operator(data, hidden, weights, has_biases, layers, dropout, train, both_ways, batch_first)

    return checked


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attention, called only if keys, values and mask fit the queries."""
    name = "scaled_dot_product_attention"
    _require(not enable_gqa, name, "as many heads of keys as of queries")
    lead, length = query.shape[:-2], key.shape[-2]
    fits = query.ndim == key.ndim == value.ndim >= 2 and query.shape[-1] == key.shape[-1]
    fits = fits and key.shape[:-2] == value.shape[:-2] == lead and value.shape[-2] == length
    fits = fits and 0 not in (*query.shape, *key.shape, *value.shape)
    _require(fits, name, "[*lead, L, E], [*lead, S, E] and [*lead, S, V]")
    if attn_mask is not None:
        whole = (*lead, query.shape[-2], length)
        ours, theirs = attn_mask.shape[::-1], whole[::-1]
        fits = attn_mask.ndim <= len(whole) and all(one in (1, other) for one, other in zip(ours, theirs, strict=False))
        _require(fits, name, "a mask that broadcasts to [*lead, L, S]")
    return torch.ops.aten.scaled_dot_product_attention.default(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=False
    )


def batch_norm(operator: Any) -> Callable[..., Any]:
    """An operator of batch normalisation, called only with one value for each channel.

    Args:
        operator: the operator; tensors are its first arguments.
    """

    def checked(data: Tensor, *arguments: Any) -> Any:
        given = [one for one in arguments if isinstance(one, Tensor)]
        fits = data.ndim > 1 and all(tuple(one.shape) == (data.shape[1],) for one in given)
        _require(fits, str(operator), "a mean, variance, weight and bias for each channel")
        return operator(data, *arguments)

    return checked


def zeros(size: Sequence[int], **options: Any) -> Tensor:
    """Zeros in place of uninitialised memory."""
    options.pop("memory_format", None)
    return torch.ops.aten.zeros.default(size, **options)


def zeros_like(data: Tensor, **options: Any) -> Tensor:
    """Zeros in place of uninitialised memory."""
    return torch.ops.aten.zeros_like.default(data, **options)


def new_zeros(data: Tensor, size: Sequence[int], **options: Any) -> Tensor:
    """Zeros in place of uninitialised memory."""
    return torch.ops.aten.new_zeros.default(data, size, **options)


_aten = torch.ops.aten

CHECKED: Mapping[Any, Callable[..., Any]] = {
    _aten.lstm.input: recurrent(_aten.lstm.input, 4, 2),
    _aten.gru.input: recurrent(_aten.gru.input, 3, 1),
    _aten.rnn_tanh.input: recurrent(_aten.rnn_tanh.input, 1, 1),
    _aten.rnn_relu.input: recurrent(_aten.rnn_relu.input, 1, 1),
    _aten.scaled_dot_product_attention.default: attention,
    _aten._native_batch_norm_legit_no_training.default: batch_norm(_aten._native_batch_norm_legit_no_training.default),
    _aten._native_batch_norm_legit.no_stats: batch_norm(_aten._native_batch_norm_legit.no_stats),
    _aten.empty.memory_format: zeros,
    _aten.empty_like.default: zeros_like,
    _aten.new_empty.default: new_zeros,
}
"""Functions that replace operators which trust their caller."""

MODES: Mapping[str, frozenset[str]] = {
    "torch.ops.aten.div.Tensor_mode": frozenset({"floor"}),
    "torch.ops.aten.pad.default": frozenset({"constant"}),
}
"""The strings that these operators accept: their other modes trust their caller, or abort the process."""

_SHAPE_ARITHMETIC = """
_operator.add _operator.and_ _operator.eq _operator.floordiv _operator.ge _operator.getitem _operator.gt _operator.le
_operator.lt _operator.mod _operator.mul _operator.ne _operator.neg _operator.or_ _operator.sub _operator.truediv
math.ceil math.floor math.sqrt math.trunc
torch.sym_float torch.sym_int torch.sym_ite torch.sym_max torch.sym_min torch.sym_not torch.sym_sqrt torch.sym_sum
"""

ADMITTED = frozenset(
    {
        *_names(_ONE_BY_ONE, _ALONG_DIMENSIONS, _VIEWS_AND_COPIES, _INDICES, _NEW_TENSORS, _CHANCE, _LAYERS, _QUESTIONS),
        *(f"torch.ops.{operator}" for operator in CHECKED),
        *MODES,
        *_SHAPE_ARITHMETIC.split(),
    }
)
"""The operators that a program may call, under the names in its file."""
