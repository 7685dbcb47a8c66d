"""Minari datasets, made by Minari itself and by MinariWriter, read as a policy sees them."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import minari
import numpy as np
import pytest
from gymnasium import spaces
from minari.data_collector.episode_buffer import EpisodeBuffer

from headwater.algorithms.ppo.ppo import PPOConfig
from headwater.data.sample_batch import MultiAgentBatch, SampleBatch
from headwater.offline import EndOfInput, IOContext, MinariReader, MinariWriter, OfflineError, make_reader, make_writer
from headwater.offline.episodes import StepCounter
from headwater.sampling.filters import get_filter
from headwater.sampling.policy_encoder import policy_encoder
from headwater.sampling.preprocessors import get_action_adapter, get_encoder
from tests.offline.workers import make_worker, sample

CART_POLE = spaces.Box(-np.inf, np.inf, (4,), np.float32), spaces.Discrete(2)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where Minari keeps its datasets."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return tmp_path / "minari"


def play(env: gymnasium.Env, episodes: int, limit: int = 1000) -> list[EpisodeBuffer]:
    buffers = []
    env.action_space.seed(0)
    for seed in range(episodes):
        obs, _ = env.reset(seed=seed)
        observations, actions, rewards, terminations, truncations = [obs], [], [], [], []
        while not rewards or not (terminations[-1] or truncations[-1] or len(rewards) == limit):
            actions.append(env.action_space.sample())
            obs, reward, terminated, truncated, _ = env.step(actions[-1])
            observations.append(obs)
            rewards.append(reward)
            terminations.append(terminated)
            truncations.append(truncated)
        buffers.append(EpisodeBuffer(observations=observations, actions=actions, rewards=rewards,
                                     terminations=terminations, truncations=truncations))  # fmt: skip
    return buffers


def create(name: str, env: gymnasium.Env, buffers: list[EpisodeBuffer], data_format: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        minari.create_dataset_from_buffers(name, buffers, env=env, data_format=data_format)


@pytest.mark.parametrize("data_format", ["hdf5", "arrow"])
def test_rows_of_a_dataset_that_minari_made(root: Path, data_format: str) -> None:
    env = gymnasium.make("CartPole-v1")
    buffers = play(env, 5)
    create("headwater/cartpole-v0", env, buffers, data_format)
    reader = MinariReader("headwater/cartpole-v0", batch_rows=None, epochs=1)
    for index, (episode, batch) in enumerate(zip(buffers, reader, strict=True)):
        np.testing.assert_array_equal(batch["obs"], np.stack(episode.observations[:-1]))
        np.testing.assert_array_equal(batch["new_obs"], np.stack(episode.observations[1:]))
        assert batch["obs"].dtype == np.float32 and batch["actions"].dtype == np.int64
        assert batch["actions"].tolist() == episode.actions and batch["rewards"].tolist() == episode.rewards
        assert batch["terminateds"].tolist() == episode.terminations
        assert batch["eps_id"].tolist() == [index] * len(episode) and batch["t"].tolist() == [*range(len(episode))]
    env.close()


def test_by_path_in_shards_and_batches(root: Path) -> None:
    env = gymnasium.make("CartPole-v1")
    buffers = play(env, 7)
    create("cartpole-v0", env, buffers, "hdf5")
    seen = []
    for shard in range(3):
        for target in (root / "cartpole-v0", root / "cartpole-v0" / "data"):
            reader = MinariReader(target, batch_rows=10, shuffle_seed=1, shard=shard, num_shards=3, epochs=1)
            batches = list(reader)
        assert {batch.num_rows for batch in batches[:-1]} == {10}
        seen += [tuple(row) for batch in batches for row in np.stack([batch["eps_id"], batch["t"]], 1).tolist()]
    assert sorted(seen) == [(i, t) for i, episode in enumerate(buffers) for t in range(len(episode))]
    env.close()


def test_an_episode_that_just_stops_was_truncated(root: Path) -> None:
    env = gymnasium.make("CartPole-v1")
    create("stops-v0", env, play(env, 1, limit=3), "hdf5")
    batch = MinariReader("stops-v0", batch_rows=None).next()
    assert batch["truncateds"].tolist() == [False, False, True] and not batch["terminateds"].any()
    env.close()


class Nested(gymnasium.Env):
    """Nested observations and actions whose parts count the steps."""

    observation_space = spaces.Dict(
        {"where": spaces.Tuple([spaces.Box(-9, 9, (2,)), spaces.Discrete(5, start=1)]), "lamp": spaces.MultiBinary(3)}
    )
    action_space = spaces.Dict({"push": spaces.Box(-2, 2, (2,)), "gear": spaces.Discrete(3, start=1)})

    def _obs(self) -> Any:
        return {"where": (np.full(2, self.t, np.float32), np.int64(1 + self.t % 5)), "lamp": np.ones(3, np.int8)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return self._obs(), float(self.t), self.t == 4, False, {}


@pytest.mark.parametrize("data_format", ["hdf5", "arrow"])
def test_nested_observations_and_actions(root: Path, data_format: str) -> None:
    env = Nested()
    steps = play(env, 2)

    def stacked(values: list[Any]) -> Any:
        if isinstance(values[0], dict):
            return {key: stacked([value[key] for value in values]) for key in values[0]}
        if isinstance(values[0], tuple):
            return tuple(stacked(list(part)) for part in zip(*values, strict=True))
        return np.stack(values)

    buffers = [
        EpisodeBuffer(observations=stacked(of.observations), actions=stacked(of.actions), rewards=of.rewards,
                      terminations=of.terminations, truncations=of.truncations)
        for of in steps
    ]  # fmt: skip
    create("nested-v0", env, buffers, data_format)
    encoder, adapter = get_encoder(env.observation_space), get_action_adapter(env.action_space)
    batch = MinariReader("nested-v0", encoder=encoder, action_adapter=adapter, batch_rows=None).next()
    assert batch["obs"].shape == (4, *encoder.space.shape)
    first = encoder.decode(batch["new_obs"][0])
    assert first["where"][0].tolist() == [1, 1] and first["where"][1] == 2
    back = adapter.to_env(adapter.unflatten(batch["actions"]))
    np.testing.assert_allclose(back["push"], buffers[0].actions["push"], atol=1e-5)
    np.testing.assert_array_equal(back["gear"], buffers[0].actions["gear"])


def test_what_the_policy_sees_of_the_step_before_and_through_a_filter(root: Path) -> None:
    env = gymnasium.make("CartPole-v1")
    buffers = play(env, 3)
    create("cartpole-v0", env, buffers, "hdf5")
    config = PPOConfig(model={"use_prev_action": True, "use_prev_reward": True})
    encoder = policy_encoder(env.observation_space, env.action_space, config)
    batch = MinariReader("cartpole-v0", encoder=encoder, batch_rows=None).next()
    assert batch["obs"][0, 4:].tolist() == [0, 0, 0]
    np.testing.assert_array_equal(batch["obs"][1:, 4:6].argmax(1), batch["actions"][:-1])
    np.testing.assert_array_equal(batch["new_obs"][:-1], batch["obs"][1:])
    assert (batch["new_obs"][:, 6] == 1).all()

    seen = get_filter("MeanStdFilter", (4,))
    MinariReader("cartpole-v0", obs_filter=seen, batch_rows=None).next()
    assert seen.get_state()["n"] == len(buffers[0]) if "n" in seen.get_state() else True
    env.close()


def test_sampled_episodes_become_a_dataset(root: Path) -> None:
    worker = make_worker(horizon=40)
    counter, batches = StepCounter(), []
    with make_writer("minari:headwater/sampled-v1", chain=worker.acting_chain()) as writer:
        for _ in range(4):
            batches.append(counter.add(sample(worker)))
            writer.write(batches[-1])
    worker.stop()
    dataset = minari.load_dataset("headwater/sampled-v1")
    whole = {int(row["eps_id"]) for batch in batches for row in batch.rows() if row["terminateds"] or row["truncateds"]}
    assert dataset.total_episodes == len(whole) > 10
    rows = {(int(row["eps_id"]), int(row["t"])): row for batch in batches for row in batch.rows()}
    firsts = {rows[episode, 0]["obs"].tobytes(): episode for episode in whole}
    for episode in dataset:
        known = firsts[np.asarray(episode.observations[0], np.float32).tobytes()]
        own = [rows[known, t] for t in range(len(episode.rewards))]
        np.testing.assert_array_equal(episode.observations[1:], [row["new_obs"] for row in own])
        np.testing.assert_array_equal(episode.actions, [row["actions"] for row in own])
        np.testing.assert_array_equal(episode.truncations, [row["truncateds"] for row in own])
        assert (known, len(own)) not in rows
    reader = make_reader("minari:headwater/sampled-v1", chain=worker.acting_chain(), epochs=1)
    assert sum(batch.count for batch in reader) == dataset.total_steps


def test_box_actions_are_stored_as_the_env_took_them(root: Path) -> None:
    worker = make_worker("Pendulum-v1", train_batch_size=800, horizon=20)
    batch = sample(worker)
    with make_writer("minari:pendulum-v0", chain=worker.acting_chain()) as writer:
        writer.write(batch)
    stored = MinariReader("pendulum-v0", batch_rows=None)._storage
    assert max(float(np.abs(episode["actions"]).max()) for episode in stored.get_episodes(range(10))) > 1.01
    back = next(iter(make_reader("minari:pendulum-v0", chain=worker.acting_chain(), batch_rows=None)))
    inside = np.abs(batch["actions"][:20]) < 1  # what was clipped stays clipped
    np.testing.assert_allclose(back["actions"][inside], batch["actions"][:20][inside], atol=1e-5)
    worker.stop()


@pytest.mark.parametrize("data_format", ["hdf5", "arrow"])
def test_a_dataset_is_continued_but_not_with_other_spaces(tmp_path: Path, data_format: str) -> None:
    def write(seed: int, path: Path = tmp_path / "data set") -> None:
        with MinariWriter(path, *CART_POLE, data_format=data_format) as writer:
            worker = make_worker(seed=seed)
            writer.write(sample(worker))
            worker.stop()

    write(0)
    once = MinariReader(tmp_path / "data set")._storage.total_episodes
    write(1)
    assert MinariReader(tmp_path / "data set")._storage.total_episodes > once > 0
    with pytest.raises(OfflineError, match="has the spaces"):
        MinariWriter(tmp_path / "data set", spaces.Box(0, 1, (3,)), spaces.Discrete(2))
    assert [path.name for path in tmp_path.iterdir()] == ["data set"]


def test_workers_write_datasets_of_their_own(root: Path) -> None:
    writer = MinariWriter("expert-v2", *CART_POLE, worker_index=3)
    assert writer.path == root / "expert-worker3-v2" and writer.dataset_id == "expert-worker3-v2"


def test_a_disk_error_drops_the_torn_episode_and_the_next_ones_are_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = make_worker()
    writer = MinariWriter(tmp_path / "set", *CART_POLE)
    writer.write(sample(worker))
    writer.flush()
    before = writer._storage.total_episodes
    writer.write(sample(worker))
    with monkeypatch.context() as patch:
        from minari.dataset._storages import hdf5_storage

        add, calls = hdf5_storage._add_episode_to_group, iter([True, False])

        def sometimes(*args: Any, **kwargs: Any) -> None:
            if "rewards" in args[0] and not next(calls):
                raise RuntimeError("no space left on the device")
            add(*args, **kwargs)

        patch.setattr(hdf5_storage, "_add_episode_to_group", sometimes)
        with pytest.raises(OSError, match="no space left"):
            writer.flush()
    assert writer.num_rows_lost > 0 and writer._storage.total_episodes == before
    writer.write(sample(worker))
    writer.close()
    rows = list(MinariReader(tmp_path / "set", batch_rows=None, epochs=1))
    assert len(rows) == writer._storage.total_episodes > before
    worker.stop()


def test_what_a_dataset_cannot_hold_is_said(tmp_path: Path) -> None:
    writer = MinariWriter(tmp_path / "set", *CART_POLE)
    with pytest.raises(OfflineError, match="needs the columns new_obs"):
        writer.write(SampleBatch({"obs": np.zeros((2, 4)), "actions": [0, 1], "rewards": [1.0, 1.0]}))
    rows = SampleBatch({"obs": np.zeros((2, 4))})
    with pytest.raises(OfflineError, match="one agent"):
        writer.write(MultiAgentBatch({"red": rows, "blue": rows}, 2))


def test_a_dataset_that_is_not_there_or_does_not_fit(root: Path) -> None:
    with pytest.raises(OfflineError, match="minari download missing-v0"):
        make_reader("minari:missing-v0")
    env = gymnasium.make("CartPole-v1")
    create("cartpole-v0", env, play(env, 1), "hdf5")
    with pytest.raises(OfflineError, match="has the observation space"):
        MinariReader("cartpole-v0", encoder=get_encoder(spaces.Box(0, 1, (3,))))
    with pytest.raises(OfflineError, match="has the action space"):
        MinariReader("cartpole-v0", action_adapter=get_action_adapter(spaces.Discrete(3)))
    with pytest.raises(OfflineError, match="fewer workers"):
        MinariReader("cartpole-v0", shard=0, num_shards=1000)
    reader = MinariReader("cartpole-v0", epochs=1)
    reader.next()
    with pytest.raises(EndOfInput):
        reader.next()
    env.close()


@pytest.mark.parametrize("how", ["metadata", "no spaces", "hdf5", "unknown format"])
def test_a_damaged_dataset_is_named_and_nothing_in_it_is_called(root: Path, how: str) -> None:
    env = gymnasium.make("CartPole-v1")
    create("cartpole-v0", env, play(env, 2), "hdf5")
    env.close()
    data = root / "cartpole-v0" / "data"
    metadata = json.loads((data / "metadata.json").read_text())
    if how == "no spaces":  # Minari would make the env that is named, here by calling os.mkdir
        del metadata["observation_space"], metadata["action_space"]
        spec = json.loads(metadata["env_spec"]) | {"entry_point": "os:mkdir", "kwargs": {"path": str(root / "called")}}
        metadata["env_spec"] = json.dumps(spec)
    if how == "unknown format":
        metadata["data_format"] = "pickle"
    (data / "metadata.json").write_text("{" if how == "metadata" else json.dumps(metadata))
    if how == "hdf5":
        (data / "main_data.hdf5").write_bytes((data / "main_data.hdf5").read_bytes()[:2000])
    with pytest.raises(OfflineError, match="cartpole-v0"):
        MinariReader("cartpole-v0").next()
    assert not (root / "called").exists()
    if how == "no spaces":
        reader = MinariReader("cartpole-v0", encoder=get_encoder(CART_POLE[0]),
                              action_adapter=get_action_adapter(CART_POLE[1]))  # fmt: skip
        assert reader.next().count == 1024 and not (root / "called").exists()


def test_a_writer_by_setting(tmp_path: Path) -> None:
    worker = make_worker()
    context = IOContext(settings={"episodes_per_write": 1})
    writer = make_writer(f"minari:{tmp_path / 'set'}", context, chain=worker.acting_chain())
    writer.write(sample(worker))
    assert (tmp_path / "set" / "data" / "metadata.json").is_file()
    with pytest.raises(OfflineError, match="one agent"):
        make_writer("minari:set-v0")
    worker.stop()
