"""What a policy sees of a step: parts of nested observations, the step before, encoders of the user's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from headwater import ExportedPolicy, PPOTrainer
from headwater.config import TrainerConfig
from headwater.envs.nested import make_gather
from headwater.errors import ConfigError, HeadwaterError
from headwater.policy.catalog import ModelCatalog
from headwater.policy.encoded_space import EncodedSpace, parts_of
from headwater.sampling.action_adapters import get_action_adapter
from headwater.sampling.policy_encoder import PolicyEncoder, policy_encoder
from headwater.sampling.preprocessors import Encoder, get_encoder
from headwater.sampling.trajectory import Trajectory
from tests.sampling.test_rollout_worker import make_worker
from tests.toy_envs import CounterEnv, EchoEnv

BOTH = {"use_prev_action": True, "use_prev_reward": True}
DISCRETE = spaces.Discrete(3)


def kinds(space: spaces.Box) -> list[tuple[str, tuple[int, ...]]]:
    return [(part.kind, part.shape) for part in parts_of(space)]


def encoder_of(observations: spaces.Space, actions: spaces.Space = DISCRETE, **model: Any) -> Encoder:
    return policy_encoder(observations, actions, TrainerConfig(model=model), "Toy-v0")


# Parts.

CAMERA = spaces.Dict(
    {
        "speed": spaces.Box(-9, 9, (2,)),
        "camera": spaces.Box(0, 255, (3, 8, 8), np.uint8),
        "lamp": spaces.Discrete(2),
        "depth": spaces.Box(0, 1, (8, 8, 1)),
        "map": spaces.Box(0, 1, (4, 5), np.uint8),
    }
)


def test_images_in_nested_observations_stay_images() -> None:
    space = get_encoder(CAMERA).space
    assert kinds(space) == [
        ("image", (8, 8, 3)),
        ("image", (8, 8, 1)),
        ("vector", (2,)),
        ("image", (4, 5, 1)),
        ("vector", (2,)),
    ]
    CAMERA.seed(0)
    row = CAMERA.sample()
    [code] = get_encoder(CAMERA).encode(make_gather(CAMERA)([row]))
    camera = code[:192].reshape(8, 8, 3)
    np.testing.assert_allclose(camera, np.moveaxis(row["camera"], 0, -1) / 255, atol=1e-6)
    np.testing.assert_array_equal(code[192:256].reshape(8, 8, 1), row["depth"])
    np.testing.assert_array_equal(code[258:278].reshape(4, 5), row["map"])  # bytes from 0 to 1 are as they should be
    assert space.contains(code) and get_encoder(CAMERA).decode(code)["camera"].tolist() == row["camera"].tolist()


def test_adjacent_vectors_are_one_and_vectors_alone_a_plain_box() -> None:
    space = spaces.Tuple([spaces.Discrete(2), spaces.Tuple([spaces.Box(-1, 1, (2, 2)), spaces.MultiBinary(3)])])
    assert get_encoder(space).space == spaces.Box(np.float32([0, 0, -1, -1, -1, -1, 0, 0, 0]), np.float32([1] * 9))
    assert not isinstance(get_encoder(space).space, EncodedSpace)
    nested = spaces.Tuple(
        [space, spaces.Dict({"image": CAMERA["camera"], "x": spaces.Discrete(2)}), spaces.Discrete(3)]
    )
    assert kinds(get_encoder(nested).space) == [("vector", (9,)), ("image", (8, 8, 3)), ("vector", (5,))]


def test_rows_have_features_then_the_step_before_then_the_mask() -> None:
    observations = spaces.Dict(
        {"action_mask": spaces.MultiBinary(3), "b": spaces.Discrete(2), "image": CAMERA["depth"]}
    )
    encoder = encoder_of(observations, **BOTH)
    assert kinds(encoder.space) == [
        ("vector", (2,)), ("image", (8, 8, 1)), ("prev_action", (3,)), ("prev_reward", (1,)), ("action_mask", (3,)),
    ]  # fmt: skip
    assert encoder.space.num_features == 66
    image = np.full((1, 8, 8, 1), 0.5, np.float32)
    obs = {"b": np.array([1]), "image": image, "action_mask": np.array([[0, 1, 1]], np.int8)}
    before = encoder.before(1, np.array([2]), np.array([-3.5], np.float32))
    [row] = encoder.encode(obs, before)
    assert row[:2].tolist() == [0, 1] and (row[2:66] == 0.5).all() and row[66:].tolist() == [0, 0, 1, -3.5, 0, 1, 1]
    assert encoder.encode(obs)[0, 66:].tolist() == [0, 0, 0, 0, 0, 1, 1]


@pytest.mark.parametrize(
    ("seen", "kind"),
    [
        (spaces.Box(0, 255, (8, 8, 3), np.uint8), ("image", (8, 8, 3))),
        (spaces.Box(0, 1, (2, 8, 8)), ("image", (8, 8, 2))),
        (spaces.Box(-1, 1, (4,)), ("vector", (4,))),
        (spaces.Discrete(5, start=3), ("vector", (5,))),
    ],
)
def test_an_observation_beside_its_mask_is_what_it_would_be_alone(seen: spaces.Space, kind: Any) -> None:
    observations = spaces.Dict({"observation": seen, "action_mask": spaces.Box(0, 1, (3,), np.int8)})
    encoder = encoder_of(observations)
    assert kinds(encoder.space) == [kind, ("action_mask", (3,))]
    alone = encoder_of(seen, use_prev_reward=True)
    assert kinds(alone.space) == [kind, ("prev_reward", (1,))]
    observations.seed(1)
    row = observations.sample()
    both = encoder.encode(make_gather(observations)([row]))[0]
    np.testing.assert_array_equal(both[:-3], alone.encode(make_gather(seen)([row["observation"]]))[0, :-1])
    np.testing.assert_array_equal(both[-3:], row["action_mask"])


def test_without_anything_besides_the_encoder_is_the_plain_one() -> None:
    assert encoder_of(spaces.Box(-1, 1, (4,))).is_identity
    assert not isinstance(encoder_of(CAMERA), PolicyEncoder)


@pytest.mark.parametrize(
    ("observations", "actions", "message"),
    [
        ({"x": DISCRETE, "action_mask": spaces.MultiBinary(4)}, DISCRETE, "'Toy-v0'.*action has 3 choices.*4 entries"),
        ({"x": DISCRETE, "action_mask": spaces.Discrete(3)}, DISCRETE, "'Toy-v0'.*holds no masks"),
        ({"x": DISCRETE, "action_mask": spaces.MultiBinary(3)}, spaces.Box(-1, 1), "no choices to mask.*another name"),
        ({"action_mask": spaces.MultiBinary(3)}, DISCRETE, "and nothing else"),
    ],
)
def test_masks_that_do_not_fit_are_refused(observations: Any, actions: spaces.Space, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        encoder_of(spaces.Dict(observations), actions)


# The action before.


@pytest.mark.parametrize(
    ("space", "action", "code"),
    [
        (spaces.Discrete(3, start=5), np.array([2]), [0, 0, 1]),
        (spaces.MultiDiscrete([[2, 3]], start=[[1, 1]]), np.array([[[1, 0]]]), [0, 1, 1, 0, 0]),
        (spaces.MultiBinary(3), np.array([[1, 0, 1]]), [1, 0, 1]),
        (spaces.Box(300, 500, (2,)), np.array([[1.5, -2.0]], np.float32), [1.5, -2.0]),
        (spaces.Box(0, 255, (1, 2, 1), np.uint8), np.array([[[[1.5], [-2.0]]]], np.float32), [1.5, -2.0]),
        (
            spaces.Dict({"z": spaces.Discrete(2), "a": spaces.Tuple([spaces.Box(-1, 1, ()), spaces.Discrete(2)])}),
            {"z": np.array([0]), "a": (np.array([0.5], np.float32), np.array([1]))},
            [0.5, 0, 1, 1, 0],
        ),
    ],
)
def test_actions_are_seen_as_they_were_sampled(space: spaces.Space, action: Any, code: list[float]) -> None:
    encoder = encoder_of(spaces.Box(-1, 1, (1,)), space, use_prev_action=True)
    assert isinstance(encoder, PolicyEncoder)
    assert encoder.before(1, action).tolist() == [code]
    adapter = get_action_adapter(space)
    there_and_back = adapter.to_env(adapter.from_env(adapter.to_env(action)))
    np.testing.assert_equal(there_and_back, adapter.to_env(action))


@pytest.mark.parametrize(("clip", "seen"), [(None, -3.0), (True, -1.0), (2.0, -2.0), (False, -3.0)])
def test_rewards_are_seen_as_learned_from(clip: Any, seen: float) -> None:
    config = TrainerConfig(model={"use_prev_reward": True}, clip_rewards=clip)
    encoder = policy_encoder(spaces.Box(-1, 1, (1,)), DISCRETE, config)
    assert isinstance(encoder, PolicyEncoder)
    assert encoder.before(1, rewards=np.array([-3.0], np.float32)).tolist() == [[seen]]


ENVS: dict[str, Any] = {
    "copies": lambda context: EchoEnv(),
    **{
        mode.name.lower(): lambda context, mode=mode: SyncVectorEnv([EchoEnv] * 2, autoreset_mode=mode)
        for mode in AutoresetMode
    },
}


def split(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of an `EchoEnv` [..., 12]: the step's number, the action before (-1: none), the reward before."""
    one_hot = rows[..., 1:11]
    return rows[..., 0], np.where(one_hot.any(-1), one_hot.argmax(-1), -1), rows[..., 11]


@pytest.mark.parametrize(("mode", "horizon"), [*((mode, None) for mode in ENVS), ("copies", 3), ("disabled", 3)])
@pytest.mark.parametrize("batch_mode", ["truncate_episodes", "complete_episodes"])
def test_the_step_before_is_that_of_the_episode(mode: str, batch_mode: str, horizon: int | None) -> None:
    """Case P8: in every mode, over fragments, resets and horizons; `EchoEnv` pays the action."""
    worker = make_worker(ENVS[mode], 2, rows=20, model=BOTH, batch_mode=batch_mode, horizon=horizon)
    last: dict[int, tuple[float, float]] = {}
    for _ in range(4):
        batch = worker.sample()
        steps, actions, rewards = split(batch["obs"])
        assert (batch["rewards"] == batch["actions"]).all()
        for t in range(batch.count):
            before = last.get(int(batch["eps_id"][t]))
            assert (steps[t] == 0) == (before is None)
            assert (actions[t], rewards[t]) == (before or (-1, 0))
            last[int(batch["eps_id"][t])] = (batch["actions"][t], batch["rewards"][t])
    worker.stop()


@pytest.mark.parametrize("mode", ENVS)
def test_a_successor_has_the_last_action_and_reward(mode: str) -> None:
    worker = make_worker(ENVS[mode], 2, rows=20, model=BOTH)
    for _ in range(3):
        trajectory: Trajectory = worker.sampler.sample()
        actions, obs = trajectory["actions"], trajectory.new_obs()
        steps, seen, paid = split(obs)
        valid = np.ones(trajectory.shape, bool) if trajectory.valid is None else trajectory.valid.copy()
        valid[:-1] &= (trajectory["eps_id"][1:] == trajectory["eps_id"][:-1]) | (trajectory["terminateds"][:-1])
        assert (seen[valid] == actions[valid]).all() and (paid[valid] == actions[valid]).all()
        assert (steps[valid] == trajectory["obs"][..., 0][valid] + 1).all()
    worker.stop()


def test_a_lost_episode_is_forgotten() -> None:
    class FaultyEcho(EchoEnv):
        faults = 0

        def step(self, action: Any) -> Any:
            if self.t == 3 and FaultyEcho.faults < 2:
                FaultyEcho.faults += 1
                raise RuntimeError("lost")
            return super().step(action)

    worker = make_worker(lambda context: FaultyEcho(), 2, rows=40, model=BOTH, on_env_error="reset")
    trajectory = worker.sampler.sample()
    steps, actions, _ = split(trajectory["obs"])
    assert FaultyEcho.faults == 2 and (steps[:5, 0] == [0, 1, 2, 3, 0]).all()
    assert (actions[steps == 0] == -1).all() and (actions[steps > 0] >= 0).all()
    worker.stop()


def test_running_episodes_go_on_with_their_step_before() -> None:
    workers = [make_worker(lambda context: SavedEcho(), 2, rows=10, model=BOTH) for _ in range(2)]
    workers[0].sample()
    assert workers[1].set_state(workers[0].get_state())
    batches = [worker.sample() for worker in workers]
    np.testing.assert_array_equal(batches[0]["obs"], batches[1]["obs"])
    assert split(batches[0]["obs"])[1][0] >= 0
    for worker in workers:
        worker.stop()


class SavedEcho(EchoEnv):
    def get_state(self) -> dict[str, Any]:
        return {"t": self.t}

    def set_state(self, state: dict[str, Any]) -> None:
        self.t = state["t"]


def test_the_same_everywhere(tmp_path: Any) -> None:
    """Sampling, acting by hand and the export see the same rows, filtered alike: equal actions and values."""
    space = spaces.Dict({"go": spaces.Discrete(3, start=4), "push": spaces.Box(300, 500, (2,))})
    config = {
        "num_envs_per_worker": 2, "train_batch_size": 64, "sgd_minibatch_size": 64, "seed": 1, "clip_rewards": 2.0,
        "observation_filter": "MeanStdFilter", "explore": False, "model": BOTH,
    }  # fmt: skip
    with PPOTrainer(config, env=lambda context: PaysEnv(space), logger_creator=False) as trainer:
        trainer.train()
        exported = ExportedPolicy.load(trainer.export_policy_model(tmp_path / "export"))
        worker = trainer.workers.local_worker()
        env = PaysEnv(space)
        observation, _ = env.reset(seed=5)
        action = reward = taken = None
        for _ in range(6):
            given = {"prev_action": action, "prev_reward": reward}
            by_hand = trainer.compute_action(observation, **given)
            np.testing.assert_equal(exported.compute_action(observation, **given), by_hand)
            many = trainer.compute_actions(
                {"a": observation, "b": observation},
                prev_action={} if action is None else {"a": action},
                prev_reward={} if reward is None else {"a": reward},
            )
            np.testing.assert_equal(many["a"], by_hand)
            np.testing.assert_equal(many["b"], trainer.compute_action(observation))
            rows = worker.acting_chain().encoder.encode(
                observation[None],
                None
                if action is None
                else worker.acting_chain().encoder.before(1, taken, np.array([reward], np.float32)),
            )
            sampled, _, _ = worker.get_policy().compute_actions(worker.filters["default_policy"](rows, update=False))
            np.testing.assert_equal(
                {k: v[0] for k, v in worker.acting_chain().action_adapter.to_env(sampled).items()}, by_hand
            )
            action, taken = by_hand, sampled
            observation, reward, *_ = env.step(action)
        assert worker.filters["default_policy"].rs.shape == (1,)
        with pytest.raises(HeadwaterError, match="actions or rewards before do not fit.*prev_action"):
            trainer.compute_action(observation, prev_action={"go": 9, "push": np.zeros(2)})


class PaysEnv(EchoEnv):
    """Observes noise and pays by the action."""

    def __init__(self, action_space: spaces.Space) -> None:
        super().__init__(action_space=action_space)
        self.observation_space = spaces.Box(-9, 9, (1,))

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        self.t += 1
        return (
            self.np_random.normal(size=1).astype(np.float32),
            float(action["push"].mean() - 399),
            self.t >= 9,
            False,
            {},
        )


def test_only_features_are_filtered() -> None:
    worker = make_worker(lambda context: EchoEnv(), 2, rows=40, model=BOTH, observation_filter="MeanStdFilter")
    batches = [worker.sample() for _ in range(3)]
    stat = worker.filters["default_policy"].rs
    assert stat.n == 120 and stat.shape == (1,)
    for batch in batches:
        _, actions, rewards = split(batch["obs"])
        assert set(np.unique(batch["obs"][:, 1:11])) == {0.0, 1.0}
        inner = actions >= 0
        assert (actions[inner] == rewards[inner]).all() and rewards.max() > 5
    worker.stop()


# Encoders of the user's own.


class Wide(Encoder):
    """Observations of a `CounterEnv` [N, 1] beside their squares."""

    def __init__(self, observation_space: spaces.Space) -> None:
        super().__init__(observation_space, spaces.Box(0, np.inf, (2,), np.float32))

    def encode(self, obs: Any) -> np.ndarray:
        return np.concatenate([obs, obs**2], axis=1)


class TooWide(Wide):
    def encode(self, obs: Any) -> np.ndarray:
        return np.concatenate([obs, obs, obs], axis=1).astype(np.float64)


@pytest.mark.parametrize("given", ["class", "name", "reference"])
def test_a_custom_preprocessor(given: str) -> None:
    ModelCatalog.register_custom_preprocessor("wide", Wide)
    preprocessor = {"class": Wide, "name": "wide", "reference": f"{__name__}:Wide"}[given]
    worker = make_worker(lambda context: CounterEnv(), 2, rows=12, model={"custom_preprocessor": preprocessor})
    assert sorted(map(tuple, worker.sample()["obs"].tolist())) == [(0, 0)] * 4 + [(1, 1)] * 4 + [(2, 4)] * 4
    [action], _, _ = worker.compute_actions([np.array([1.0], np.float32)])
    assert action in (0, 1)
    worker.stop()


def test_a_custom_preprocessor_beside_the_step_before_and_a_mask() -> None:
    seen = spaces.Dict({"observation": spaces.Box(0, 9, (1,)), "action_mask": spaces.MultiBinary(3)})
    encoder = encoder_of(seen, custom_preprocessor=Wide, **BOTH)
    assert [kind for kind, _ in kinds(encoder.space)] == ["vector", "prev_action", "prev_reward", "action_mask"]
    row = {"observation": np.array([[3.0]], np.float32), "action_mask": np.array([[1, 0, 1]], np.int8)}
    assert encoder.encode(row)[0].tolist() == [3, 9, 0, 0, 0, 0, 1, 0, 1]


def test_wrong_codes_name_both_shapes() -> None:
    worker = make_worker(lambda context: CounterEnv(), 2, rows=12, model={"custom_preprocessor": TooWide})
    with pytest.raises(ConfigError, match=r"TooWide.encode returned float64\[2, 3\].*float32\[2, 2\]"):
        worker.sample()
    worker.stop()
    with pytest.raises(ConfigError, match="must be a class derived from headwater.sampling.preprocessors.Encoder"):
        encoder_of(DISCRETE, custom_preprocessor=dict)
    with pytest.raises(ConfigError, match="'narrow' is not registered.*register_custom_preprocessor"):
        encoder_of(DISCRETE, custom_preprocessor="narrow")

    class Scalar(Wide):
        def __init__(self, observation_space: spaces.Space) -> None:
            Encoder.__init__(self, observation_space, spaces.Box(0, 1, (), np.float64))

    with pytest.raises(ConfigError, match=r"Scalar: its space is Box\(.*must be a Box of rank 1"):
        encoder_of(DISCRETE, custom_preprocessor=Scalar)


def test_exports_hold_no_code(tmp_path: Any) -> None:
    worker = make_worker(lambda context: CounterEnv(), 2, rows=12, model={"custom_preprocessor": Wide})
    with pytest.raises(ConfigError, match="custom_preprocessor is code of your own"):
        worker.export_policy(tmp_path)
    worker.stop()


class Word(spaces.Text):
    """A kind of space of the test's own, so that what is registered for it concerns no other test."""


class TextEnv(CounterEnv):
    """Observes the number of its step as a word, beside what `CounterEnv` does."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Dict({"t": self.observation_space, "word": Word(5)})

    def reset(self, **kwargs: Any) -> Any:
        observation, info = super().reset(**kwargs)
        return {"t": observation, "word": "zero"}, info

    def step(self, action: Any) -> Any:
        observation, *rest = super().step(action)
        return {"t": observation, "word": ["zero", "one", "two", "three"][self.t]}, *rest


@make_gather.register(Word)
def _gather_words(space: Word, path: str = "obs") -> Any:
    return lambda rows: np.array(rows, f"<U{space.max_length}")


@get_encoder.register(Word)
class Lengths(Encoder):
    """The length of a word."""

    def __init__(self, space: Word, path: str = "obs") -> None:
        super().__init__(space, spaces.Box(0, space.max_length, (1,), np.float32))

    def encode(self, obs: Any) -> np.ndarray:
        return np.char.str_len(obs)[:, None].astype(np.float32)


def test_odd_spaces_by_registration() -> None:
    worker = make_worker(TextEnv, 2, rows=12)
    batch = worker.sample()
    assert sorted(set(map(tuple, batch["obs"].tolist()))) == [(0, 4), (1, 3), (2, 3)]
    [action], _, _ = worker.compute_actions([{"t": np.array([1.0]), "word": "one"}])
    assert action in (0, 1)
    assert worker.learn_on_batch(batch)
    worker.stop()
