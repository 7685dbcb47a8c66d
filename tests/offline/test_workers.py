"""From a worker's settings to files and back into learning."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from headwater import PPOTrainer
from headwater.data.sample_batch import MultiAgentBatch, SampleBatch
from headwater.errors import ConfigError
from headwater.offline import OfflineError, OfflineInput, OutputWriter, make_input, make_output, postprocess
from headwater.offline.episodes import run_starts
from headwater.offline.mixing import CallableReader
from headwater.offline.reader import ParquetReader
from headwater.offline.writer import ParquetWriter
from headwater.sampling.rollout_worker import RolloutWorker
from tests.offline.workers import make_worker, sample

LEARNED = ("action_logp", "vf_preds", "advantages", "value_targets")


def view(worker: RolloutWorker, **settings: Any) -> Any:
    """The worker as `make_input` and `make_output` see one of these settings."""
    config = {**{name: worker.config[name] for name in type(worker.config).model_fields}, **settings}
    config = {**config, "gamma": worker.config["gamma"], "clip_rewards": settings.get("clip_rewards")}
    return SimpleNamespace(
        config=config, seed=worker.seed, worker_index=0, num_workers=0, policy_map=worker.policy_map,
        acting_chain=worker.acting_chain, env_id=worker.env_id,
    )  # fmt: skip


def record(worker: RolloutWorker, path: Path, batches: int = 3, **settings: Any) -> list[SampleBatch]:
    output = make_output(view(worker, output=str(path), **settings))
    assert output is not None
    sampled = [sample(worker) for _ in range(batches)]
    for batch in sampled:
        output.write(batch)
    output.close()
    return sampled


def test_what_was_sampled_is_read_and_learned_from(tmp_path: Path) -> None:
    worker = make_worker()
    sampled = SampleBatch.concat_samples(record(worker, tmp_path))
    source = make_input(view(worker, input=str(tmp_path / "*.parquet"), input_config={"batch_rows": sampled.count}))
    assert isinstance(source, OfflineInput)
    batch = source.next()
    assert batch.keys() == {*sampled.keys(), "t"}
    for name in sampled:
        np.testing.assert_array_equal(batch[name], sampled[name])
    info = worker.learn_on_batch(batch, 2, 64)["default_policy"]
    assert np.isfinite(info["total_loss"]) and info["policy_loss"] != 0
    worker.stop()


def test_postprocessing_again_makes_what_sampling_made(tmp_path: Path) -> None:
    worker = make_worker(horizon=30)
    batch = record(worker, tmp_path, 1)[0]
    made = {name: batch.pop(name) for name in LEARNED}
    again = postprocess(worker.policy_map["default_policy"], batch)
    for name in LEARNED:
        np.testing.assert_allclose(again[name], made[name], rtol=2e-5, atol=2e-5, err_msg=name)
    del batch["action_dist_inputs"]
    foreign = postprocess(worker.policy_map["default_policy"], batch)
    for name in LEARNED:
        np.testing.assert_allclose(foreign[name], made[name], rtol=2e-5, atol=2e-5, err_msg=name)
    worker.stop()


def test_postprocessing_is_done_where_advantages_are_missing_or_it_is_asked_for() -> None:
    worker = make_worker()
    batch = sample(worker)
    batch["advantages"] = np.full(batch.num_rows, 7, np.float32)
    for always, kept in ((False, True), (True, False)):
        source = OfflineInput(CallableReader(lambda: batch), worker.policy_map, postprocess_inputs=always)
        assert bool((source.next()["advantages"] == 7).all()) is kept
    unknown = MultiAgentBatch({"red": batch}, batch.count)
    with pytest.raises(OfflineError, match="policy 'red'; this run's policies are default_policy"):
        OfflineInput(CallableReader(lambda: unknown), worker.policy_map).next()
    worker.stop()


def test_the_behaviours_own_log_probabilities_are_kept() -> None:
    worker = make_worker()
    batch = sample(worker)
    del batch["action_dist_inputs"]
    batch["action_logp"] = np.full(batch.num_rows, -3, np.float32)
    assert (postprocess(worker.policy_map["default_policy"], batch)["action_logp"] == -3).all()
    worker.stop()


def test_without_new_obs_rows_whose_successor_is_unknown_are_left_out() -> None:
    worker = make_worker(horizon=30)
    batch = sample(worker)
    full = postprocess(worker.policy_map["default_policy"], batch.copy())
    ends = np.append(run_starts(batch)[1:], batch.num_rows) - 1
    unknown = ends[~batch["terminateds"][ends]]
    del batch["new_obs"]
    part = postprocess(worker.policy_map["default_policy"], batch)
    assert part.num_rows == batch.num_rows - len(unknown)
    kept = np.setdiff1d(np.arange(batch.num_rows), unknown)
    np.testing.assert_array_equal(part["new_obs"][~part["terminateds"]], full["new_obs"][kept][~part["terminateds"]])
    np.testing.assert_array_equal(part["eps_id"], full["eps_id"][kept])
    with pytest.raises(OfflineError, match="no row of this batch has a successor"):
        postprocess(worker.policy_map["default_policy"], batch.slice(0, 1))
    worker.stop()


def test_a_policy_with_memory_learns_from_rows(tmp_path: Path) -> None:
    worker = make_worker(
        model={"memory": "lstm", "max_seq_len": 8, "memory_size": 16}, horizon=20, train_batch_size=160
    )
    [sampled] = record(worker, tmp_path, 1)
    assert sampled.in_sequences
    rows = ParquetReader(tmp_path, batch_rows=None).next()
    assert rows.count == sampled.count and not rows.in_sequences
    batch = postprocess(worker.policy_map["default_policy"], rows)
    assert batch.in_sequences and batch.count == sampled.count
    # All episodes begin in this fragment, so that the memory is that of sampling; sequences may be cut elsewhere.
    for name in LEARNED:
        np.testing.assert_allclose(
            batch[name][batch["mask"]], sampled[name][sampled["mask"]], rtol=1e-4, atol=1e-4, err_msg=name
        )
    states = {row["obs"][0].tobytes(): row["state_in"] for row in sampled.rows()}
    common = [(row["state_in"], states[key]) for row in batch.rows() if (key := row["obs"][0].tobytes()) in states]
    assert len(common) > 10
    np.testing.assert_allclose(*zip(*common, strict=True), atol=1e-5)
    assert np.isfinite(worker.learn_on_batch(batch, 1, 64)["default_policy"]["total_loss"])
    worker.stop()


def test_minari_into_learning(tmp_path: Path) -> None:
    worker = make_worker()
    record(worker, Path(f"minari:{tmp_path}/set"), 3)
    source = make_input(view(worker, input=f"minari:{tmp_path}/set", input_config={"batch_rows": 256}))
    assert source is not None
    batch = source.next()
    assert batch.count == 256 and set(LEARNED) <= batch.keys()
    info = worker.learn_on_batch(batch, 1, 64)["default_policy"]
    assert np.isfinite(info["total_loss"])
    worker.stop()


def test_estimates_clipping_and_shuffling_by_setting(tmp_path: Path) -> None:
    worker = make_worker()
    sampled = record(worker, tmp_path)
    source = make_input(
        view(worker, input=str(tmp_path), input_evaluation=["is", "wis"], shuffle_buffer_size=300, clip_rewards=0.5,
             input_config={"batch_rows": 256, "epochs": 1})
    )  # fmt: skip
    assert source is not None
    batches = list(source)
    assert sum(batch.count for batch in batches) == sum(batch.count for batch in sampled)
    assert sum(batch.count == 256 for batch in batches) >= 2
    assert all((batch["rewards"] == 0.5).all() for batch in batches)
    estimates = source.get_estimates()
    assert estimates["is"]["V_gain_est"] == pytest.approx(1, abs=1e-3) and estimates["wis"]["episodes"] > 5
    assert source.get_estimates() == {"is": {}, "wis": {}}
    worker.stop()


def test_an_input_goes_on_from_its_state(tmp_path: Path) -> None:
    worker = make_worker()
    record(worker, tmp_path, row_group_rows=100)
    settings = {"input": str(tmp_path), "shuffle_buffer_size": 200, "input_config": {"batch_rows": 64}}
    first, second = make_input(view(worker, **settings)), make_input(view(worker, **settings))
    assert first is not None and second is not None
    for _ in range(3):
        first.next()
    second.set_state(first.get_state())
    for _ in range(5):
        np.testing.assert_array_equal(first.next()["obs"], second.next()["obs"])
    worker.stop()


def test_settings_that_name_nothing(tmp_path: Path) -> None:
    worker = make_worker()
    assert make_input(view(worker)) is None and make_input(view(worker, input="sampler")) is None
    assert make_output(view(worker)) is None
    with pytest.raises(ConfigError, match="input_config: 'rows' is none of batch_rows"):
        make_input(view(worker, input=str(tmp_path), input_config={"rows": 3}))
    with pytest.raises(ConfigError, match="output_config: .*'rows'"):
        make_output(view(worker, output=str(tmp_path), output_config={"rows": 3}))
    with pytest.raises(ConfigError, match="this run writes none"):
        make_output(view(worker, output="logdir"))
    with pytest.raises(ConfigError, match="output: 5 is no place"):
        make_output(view(worker, output=5))
    worker.stop()


def test_logdir_own_writers_and_files_of_another_env(tmp_path: Path) -> None:
    worker, other = make_worker(), make_worker("Acrobot-v1")
    output = make_output(view(worker, output="logdir"), log_dir=tmp_path)
    assert output is not None
    output.write(sample(worker))
    output.close()
    assert len(list(tmp_path.glob("output-*.parquet"))) == 1
    with pytest.raises(OfflineError, match=r"'obs' has rows of shape \[4\], but 'default_policy' takes \[6\]"):
        make_input(view(other, input=str(tmp_path)))

    class Own(OutputWriter):
        rows = 0

        def write(self, batch: Any) -> None:
            self.rows += batch.count

        def flush(self) -> None:
            pass

    own = Own()
    mine = make_output(view(worker, output=lambda context: own))
    assert mine is not None
    mine.write(batch := sample(worker))
    assert own.rows == batch.count
    worker.stop()
    other.stop()


def test_a_full_disk_costs_rows_and_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    worker = make_worker()
    (tmp_path / "file").write_text("")
    output = make_output(view(worker, output=str(tmp_path / "file" / "below"), output_config={"row_group_rows": 1}))
    assert output is not None
    batches = [sample(worker) for _ in range(3)]
    for batch in batches:
        output.write(batch)
    output.close()
    assert (output.num_errors, output.num_rows_lost) == (3, sum(batch.count for batch in batches))
    assert caplog.text.count("could not be written") == 1
    worker.stop()


def test_what_a_function_gave_already_is_not_called_again() -> None:
    worker = make_worker()
    batch = sample(worker)
    source = make_input(view(worker, input=lambda context: None), made=lambda: batch)
    assert source is not None and source.next() is batch
    worker.stop()


def test_a_trainer_writes_and_another_learns_from_what_it_wrote(tmp_path: Path) -> None:
    common = {"num_envs_per_worker": 4, "train_batch_size": 512, "seed": 0}
    with PPOTrainer({**common, "output": str(tmp_path)}, env="CartPole-v1", logger_creator=False) as trainer:
        for _ in range(3):
            trainer.train()
    [path] = tmp_path.glob("output-*.parquet")
    rows = ParquetReader(path, batch_rows=None, epochs=1)
    assert sum(batch.count for batch in rows) >= 3 * 512
    reading = {**common, "input": str(path), "input_evaluation": ["is", "wis"], "shuffle_buffer_size": 1024}
    with PPOTrainer(reading, env="CartPole-v1", logger_creator=False) as trainer:
        result = trainer.train()
        assert np.isfinite(result["info"]["learner"]["default_policy"]["total_loss"])
        assert result["timesteps_this_iter"] >= 512


def test_several_policies_by_setting(tmp_path: Path) -> None:
    worker = make_worker()
    steps = sample(worker)
    batch = MultiAgentBatch({"default_policy": steps, "twin": steps.copy()}, steps.count)
    with ParquetWriter(tmp_path) as writer:
        writer.write(batch)
    both = view(worker, input=str(tmp_path), input_config={"batch_rows": 512})
    both.policy_map = {
        "default_policy": worker.policy_map["default_policy"],
        "twin": worker.policy_map["default_policy"],
    }
    both.acting_chain = lambda policy_id: worker.acting_chain()
    source = make_input(both)
    assert source is not None
    back = source.next()
    assert isinstance(back, MultiAgentBatch) and back.agent_steps() == 512
    worker.stop()
