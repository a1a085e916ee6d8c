"""Specs: shape, dtype and range of an env's values, made from gymnasium spaces or written by hand.

    Spec
    ├── Composite          a tree of specs: TensorDicts
    ├── NonTensor          strings and other objects
    └── TensorSpec
        ├── Bounded, Unbounded                numbers
        ├── Categorical, MultiCategorical     choices as indices
        ├── OneHot, MultiOneHot               choices as one-hot vectors
        └── Binary                            bits

Names and arguments are torchrl's. A spec is immutable, but for its mask and for the entries of a Composite that is not locked;
`expand`, `to` and `Composite.with_` derive a changed one.
"""

from reap.specs.base import Spec
from reap.specs.binary import Binary
from reap.specs.composite import Composite
from reap.specs.continuous import Bounded, Unbounded
from reap.specs.conversion import spec_from_space
from reap.specs.indices import Categorical, MultiCategorical
from reap.specs.masks import RandomPolicy, mask_keys, random_actions
from reap.specs.nontensor import NonTensor
from reap.specs.onehot import MultiOneHot, OneHot
from reap.specs.tensor_spec import TensorSpec

__all__ = [
    "Binary",
    "Bounded",
    "Categorical",
    "Composite",
    "MultiCategorical",
    "MultiOneHot",
    "NonTensor",
    "OneHot",
    "RandomPolicy",
    "Spec",
    "TensorSpec",
    "Unbounded",
    "mask_keys",
    "random_actions",
    "spec_from_space",
]
