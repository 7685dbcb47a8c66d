"""ModelCatalog: from spaces and the model config to an action distribution and a network, or to classes of your own."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
from gymnasium import spaces

from headwater.errors import ConfigError, UnsupportedSpaceError
from headwater.policy.distributions import (
    ActionDistribution,
    BinaryAutoregressiveDistribution,
    DiagGaussian,
    MultiCategorical,
)
from headwater.policy.encoded_space import mask_of
from headwater.policy.network_choice import choose_network
from headwater.policy.network_description import NetworkDescription
from headwater.registry import resolve_reference

DistFactory = Callable[..., ActionDistribution]

# Framework -> the package that binds the distributions to it, what their names there begin with, and their base.
_BINDINGS = {
    "numpy": ("headwater.frameworks.numpy", "Numpy", "NumpyDistributionWrapper"),
    "torch": ("headwater.frameworks.torch", "Torch", "TorchDistributionWrapper"),
    "tf2": ("headwater.frameworks.tf", "", "TFActionDistribution"),
    "jax": ("headwater.frameworks.jax", "JAX", "JAXDistribution"),
}

# What `custom_action_dist` may name: for the Box parts of an action space, and for a whole one of two binary choices.
_BOX_FAMILIES = ("DiagGaussian", "SquashedGaussian", "Beta", "Dirichlet", "Deterministic")
_PAIR = "BinaryAutoregressive"
_FAMILIES = (*_BOX_FAMILIES, _PAIR)


class ModelCatalog:
    """Chooses distributions and networks; knows what was registered by name."""

    _models: ClassVar[dict[str, type]] = {}
    _dists: ClassVar[dict[str, type]] = {}
    _preprocessors: ClassVar[dict[str, type]] = {}

    @classmethod
    def register_custom_model(cls, name: str, model_class: type) -> None:
        """Make `model: {custom_model: name}` mean this class."""
        cls._models[name] = model_class

    @classmethod
    def register_custom_action_dist(cls, name: str, dist_class: type) -> None:
        """Make `model: {custom_action_dist: name}` mean this class."""
        cls._dists[name] = dist_class

    @classmethod
    def register_custom_preprocessor(cls, name: str, encoder_class: type) -> None:
        """Make `model: {custom_preprocessor: name}` mean this class."""
        cls._preprocessors[name] = encoder_class

    @classmethod
    def get_custom_preprocessor(cls, model_config: Mapping[str, Any]) -> type | None:
        """The class that `custom_preprocessor` gives, names or refers to as "module:Class"; None without any."""
        return _resolve(model_config["custom_preprocessor"], cls._preprocessors, "custom_preprocessor")

    @classmethod
    def get_custom_model(cls, model_config: Mapping[str, Any]) -> type | None:
        """The class that `custom_model` gives, names or refers to as "module:Class"; None without any."""
        return _resolve(model_config["custom_model"], cls._models, "custom_model")

    @classmethod
    def is_named_family(cls, custom_action_dist: Any) -> bool:
        """Whether it is the name of one of the library's distributions, and not of a registered one."""
        return (
            isinstance(custom_action_dist, str)
            and custom_action_dist in _FAMILIES
            and custom_action_dist not in cls._dists
        )

    @classmethod
    def get_custom_action_dist(cls, model_config: Mapping[str, Any]) -> type[ActionDistribution] | None:
        """The class that `custom_action_dist` gives; None where there is none, or one of the library's is named.

        Raises:
            ConfigError: it is no class derived from ActionDistribution.
        """
        given = model_config["custom_action_dist"]
        if cls.is_named_family(given):
            return None
        dist_class = _resolve(given, cls._dists, "custom_action_dist")
        if dist_class is not None and not (isinstance(dist_class, type) and issubclass(dist_class, ActionDistribution)):
            raise ConfigError(
                f"model.custom_action_dist: {dist_class!r} must be a class derived from "
                "headwater.policy.distributions.ActionDistribution, or from a distribution of the framework."
            )
        return dist_class

    @classmethod
    def get_action_dist(
        cls,
        action_space: spaces.Space,
        model_config: Mapping[str, Any],
        framework: str = "numpy",
        normalized: bool = True,
    ) -> tuple[DistFactory, int]:
        """The distribution for an action space.

        Discrete: Categorical. MultiDiscrete, MultiBinary: MultiCategorical. Box: DiagGaussian. Dict, Tuple:
        MultiActionDistribution over their leaves. `custom_action_dist` names another one for Box ("SquashedGaussian",
        "Beta", "Dirichlet", "Deterministic"), or "BinaryAutoregressive" for two binary choices, or is a class for the
        whole space.

        Args:
            action_space: The env's.
            model_config: The `model` settings.
            framework: "numpy", or that which learns.
            normalized: Whether actions in [-1, 1] are stretched to the space's bounds before the env sees them
                (`normalize_actions`), for a squashed distribution's range.

        Returns:
            What makes the distribution from its inputs, `factory(inputs, model=None)`, and K, their width.

        Raises:
            UnsupportedSpaceError: no distribution fits the space.

        Example:
            >>> from headwater.config import ModelConfig
            >>> factory, width = ModelCatalog.get_action_dist(spaces.Discrete(3), ModelConfig())
            >>> width, factory(np.zeros((2, width), np.float32)).deterministic_sample().tolist()
            (3, [0, 0])
        """
        custom = cls.get_custom_action_dist(model_config)
        if custom is not None:
            width = int(custom.required_model_output_shape(action_space, model_config))
            return bind(custom, framework), width
        if model_config["custom_action_dist"] == _PAIR:
            return functools.partial(
                _bound_class(f"{_PAIR}Distribution", framework), nested=_is_nested_pair(action_space)
            ), 6
        leaves = _leaves(action_space, model_config, normalized)
        _require_a_box(action_space, model_config)
        makers = [leaf.bound(framework) for leaf in leaves]
        if not isinstance(action_space, spaces.Dict | spaces.Tuple):
            return makers[0], leaves[0].width
        lens = [leaf.width for leaf in leaves]
        multi = _bound_class("MultiActionDistribution", framework)
        kwargs = {"child_distributions": makers, "input_lens": lens, "action_space": action_space}
        return functools.partial(multi, **kwargs), sum(lens)

    @classmethod
    def get_free_columns(cls, action_space: spaces.Space, model_config: Mapping[str, Any]) -> tuple[int, ...]:
        """The columns of a distribution's inputs that `free_log_std` makes parameters of their own; () without."""
        if not model_config["free_log_std"]:
            return ()
        custom = cls.get_custom_action_dist(model_config)
        if custom is not None:
            width = int(custom.required_model_output_shape(action_space, model_config))
            return tuple(range(width // 2, width)) if issubclass(custom, DiagGaussian) else ()
        if model_config["custom_action_dist"] == _PAIR:
            return ()
        columns: list[int] = []
        start = 0
        for leaf in _leaves(action_space, model_config, normalized=True):
            if leaf.family in ("DiagGaussian", "SquashedGaussian"):
                columns += range(start + leaf.width // 2, start + leaf.width)
            start += leaf.width
        return tuple(columns)

    @classmethod
    def get_mask_columns(
        cls, obs_space: spaces.Box, action_space: spaces.Space, model_config: Mapping[str, Any]
    ) -> tuple[int, ...]:
        """Of the K columns, those that the observation's action mask governs, in the mask's order; () without a mask.

        Raises:
            ConfigError: the distribution is a class of the user's own, whose inputs are no logits of the choices.
        """
        mask = mask_of(obs_space)
        if mask is None:
            return ()
        custom = cls.get_custom_action_dist(model_config)
        if custom is not None:
            width = int(custom.required_model_output_shape(action_space, model_config))
            if width != mask.size:
                raise ConfigError(
                    f"model.custom_action_dist: {custom.__name__} takes {width} inputs, but the action mask has "
                    f"{mask.size} entries: one for each logit is needed. Take the mask out of the observation, or use "
                    "the built-in distribution."
                )
            return tuple(range(width))
        columns: list[int] = []
        start = 0
        for leaf in _leaves(action_space, model_config, normalized=True):
            if leaf.family in ("Categorical", "MultiCategorical"):
                columns += range(start, start + leaf.width)
            start += leaf.width
        return tuple(columns)

    @classmethod
    def get_network(
        cls,
        obs_space: spaces.Box,
        num_outputs: int,
        model_config: Mapping[str, Any],
        free_columns: tuple[int, ...] = (),
        mask_columns: tuple[int, ...] = (),
    ) -> NetworkDescription:
        """The network for encoded observations.

        Vectors get dense layers of `fcnet_hiddens`; images (`[height, width]` or `[height, width, channels]`) get
        convolutions and dense layers of `post_fcnet_hiddens`; the parts of nested observations each get their own, and
        are put side by side. Behind them comes the `memory`, if any.

        Args:
            obs_space: Encoded observations: a Box of rank 1, 2 or 3.
            num_outputs: K, the width of the distribution's inputs.
            model_config: The `model` settings.
            free_columns: Of the K columns, the log standard deviations that are free parameters.
            mask_columns: Of the K columns, those that the observation's action mask governs, in the mask's order.

        Raises:
            ConfigError: `conv_filters` reduce the image to nothing.

        Example:
            >>> from headwater.config import ModelConfig
            >>> network = ModelCatalog.get_network(spaces.Box(-1, 1, (4,)), 2, ModelConfig())
            >>> [layer.name for layer in network.policy]
            ['policy/dense_0', 'policy/dense_1', 'policy/out']
        """
        return choose_network(obs_space, num_outputs, model_config, free_columns, mask_columns)


def bind(dist_class: type[ActionDistribution], framework: str) -> type[ActionDistribution]:
    """A distribution class over a framework's ops: itself where it is bound already, else a subclass.

    Raises:
        ConfigError: it is bound to another framework.
    """
    package, prefix, base = _BINDINGS[framework]
    wrapper = getattr(importlib.import_module(package), base)
    if issubclass(dist_class, wrapper):
        return dist_class
    if is_bound(dist_class):
        if dist_class.ops is wrapper.ops:
            return dist_class
        raise ConfigError(
            f"model.custom_action_dist: {dist_class.__name__} is bound to {type(dist_class.ops).__name__}, but one for "
            f"{framework} is needed: derive it from {package}.{base}, or write it over self.ops."
        )
    members = {}
    if issubclass(dist_class, MultiCategorical | BinaryAutoregressiveDistribution):
        members["_categorical"] = _bound_class("Categorical", framework)
    return type(f"{prefix}{dist_class.__name__}", (wrapper, dist_class), members)


def is_bound(dist_class: type[ActionDistribution]) -> bool:
    """Whether a distribution class has a framework's ops."""
    return getattr(dist_class, "ops", None) is not None


class _Leaf(NamedTuple):
    """The distribution of a space that is not nested."""

    family: str
    width: int
    parameters: dict[str, Any]

    def bound(self, framework: str) -> DistFactory:
        dist_class = _bound_class(self.family, framework)
        return functools.partial(dist_class, **self.parameters) if self.parameters else dist_class


def _leaves(space: spaces.Space, model_config: Mapping[str, Any], normalized: bool) -> list[_Leaf]:
    """In the order of a nested distribution's inputs: Dict entries by key."""
    if isinstance(space, spaces.Dict):
        return [leaf for key in sorted(space.spaces) for leaf in _leaves(space.spaces[key], model_config, normalized)]
    if isinstance(space, spaces.Tuple):
        return [leaf for child in space.spaces for leaf in _leaves(child, model_config, normalized)]
    if isinstance(space, spaces.Discrete):
        return [_Leaf("Categorical", int(space.n), {})]
    if isinstance(space, spaces.MultiDiscrete):
        lens = [int(n) for n in space.nvec.ravel()]
        return [_Leaf("MultiCategorical", sum(lens), {"input_lens": lens, "action_shape": space.nvec.shape})]
    if isinstance(space, spaces.MultiBinary):
        lens = [2] * math.prod(space.shape)
        return [_Leaf("MultiCategorical", sum(lens), {"input_lens": lens, "action_shape": space.shape})]
    if isinstance(space, spaces.Box):
        return [_box_leaf(space, model_config, normalized)]
    raise UnsupportedSpaceError(
        f"No action distribution exists for the action space {space}. Use Box, Discrete, MultiDiscrete, MultiBinary, "
        "or Dict and Tuple of these, or give model.custom_action_dist."
    )


def _box_leaf(space: spaces.Box, model_config: Mapping[str, Any], normalized: bool) -> _Leaf:
    family = model_config["custom_action_dist"] or "DiagGaussian"
    size = math.prod(space.shape)
    parameters: dict[str, Any] = {} if len(space.shape) == 1 else {"action_shape": space.shape}
    if family == "Deterministic":
        return _Leaf(family, size, parameters)
    if family == "Dirichlet":
        if len(space.shape) != 1 or size < 2 or (space.low != 0).any() or (space.high != 1).any():
            raise UnsupportedSpaceError(
                f"Dirichlet gives two shares or more that sum to 1: it needs an action space Box(0, 1, (n,)), "
                f"not {space}."
            )
        return _Leaf(family, size, {"low": -1.0, "high": 1.0} if normalized else {})
    if family in ("SquashedGaussian", "Beta"):
        if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
            raise UnsupportedSpaceError(
                f"{family} needs an action space bounded on both sides, but got {space}. "
                "Leave model.custom_action_dist at None for DiagGaussian."
            )
        parameters["action_shape"] = space.shape
        if not normalized:
            parameters |= {"low": space.low.astype(np.float32), "high": space.high.astype(np.float32)}
    return _Leaf(family, 2 * size, parameters)


def _is_nested_pair(space: spaces.Space) -> bool:
    """Whether a space of two binary choices has actions that are tuples.

    Raises:
        UnsupportedSpaceError: it is another space.
    """
    if isinstance(space, spaces.Tuple) and [getattr(part, "n", None) for part in space.spaces] == [2, 2]:
        return True
    if space in (spaces.MultiDiscrete([2, 2]), spaces.MultiBinary(2)):
        return False
    raise UnsupportedSpaceError(
        f"{_PAIR} is for two binary choices: Tuple(Discrete(2), Discrete(2)), MultiDiscrete([2, 2]) or MultiBinary(2), "
        f"but the action space is {space}. Leave model.custom_action_dist at None."
    )


def _require_a_box(space: spaces.Space, model_config: Mapping[str, Any]) -> None:
    """Refuses the name of a family for Box spaces where there is no such space."""

    def has_box(part: spaces.Space) -> bool:
        if isinstance(part, spaces.Dict):
            return any(has_box(child) for child in part.spaces.values())
        return isinstance(part, spaces.Box) or (isinstance(part, spaces.Tuple) and any(map(has_box, part.spaces)))

    family = model_config["custom_action_dist"]
    if family is not None and not has_box(space):
        raise UnsupportedSpaceError(
            f"model.custom_action_dist: {family!r} is for Box actions, but the action space is {space}. "
            "Leave it at None."
        )


def _bound_class(family: str, framework: str) -> Any:
    package, prefix, _ = _BINDINGS[framework]
    return getattr(importlib.import_module(package), f"{prefix}{family}")


def _resolve(given: Any, registered: Mapping[str, type], setting: str) -> Any:
    if given is None or not isinstance(given, str):
        return given
    if given in registered:
        return registered[given]
    if ":" in given:
        return resolve_reference(given)
    raise ConfigError(
        f"model.{setting}: {given!r} is not registered (registered: {sorted(registered) or 'nothing'}). Call "
        f"ModelCatalog.register_{setting}({given!r}, YourClass) first, or give the class or 'module:Class'."
    )
