import json
import math
import os

import numpy as np
import pytest
import safetensors.numpy

from headwater.checkpoint import (
    BEST_NAME,
    CheckpointManager,
    checkpoint_name,
    load_checkpoint,
    read_checkpoint_meta,
    save_checkpoint,
    verify_checkpoint,
)
from headwater.errors import CheckpointError

STATE = {
    "trainer": {"iteration": 12, "rng": np.random.PCG64(1).state, "kl_coeff": 0.1 + 0.2, "best": -math.inf},
    "policies": {
        "default_policy": {"weights": {"policy/dense_0/kernel": np.arange(6, dtype=np.float32).reshape(2, 3)}}
    },
    "empty": {},
    "history": [1, [2.5, None], "x"],
}


def test_a_checkpoint_is_two_files_that_others_can_read(tmp_path):
    path = save_checkpoint(tmp_path / "deep" / checkpoint_name(12), STATE, {"algorithm": "PPO", "config": {"lr": 1e-4}})
    assert path == tmp_path / "deep" / "checkpoint_000012"
    assert sorted(os.listdir(path)) == ["checkpoint.json", "state.safetensors"] and os.listdir(path.parent) == [
        path.name
    ]
    manifest = json.loads((path / "checkpoint.json").read_text())
    assert manifest["meta"] == {"algorithm": "PPO", "config": {"lr": 1e-4}}
    assert {"headwater", "python", "numpy", "torch"} <= manifest["versions"].keys()
    tensors = safetensors.numpy.load_file(path / "state.safetensors")
    assert list(tensors) == ["policies/default_policy/weights/policy/dense_0/kernel"]


def test_state_and_meta_come_back(tmp_path):
    path = save_checkpoint(tmp_path / "c", STATE, {"algorithm": "PPO", "clip": math.inf})
    for given in (path, str(path), path / "checkpoint.json"):
        state, meta = load_checkpoint(given, expected_algorithm="PPO")
        assert meta == {"algorithm": "PPO", "clip": math.inf}
        weights = state["policies"]["default_policy"]["weights"].pop("policy/dense_0/kernel")
        assert np.array_equal(weights, np.arange(6).reshape(2, 3)) and weights.dtype == np.float32
        weights[0] = 7  # writable
        assert state["trainer"] == STATE["trainer"] and state["history"] == STATE["history"] and state["empty"] == {}
    assert read_checkpoint_meta(path)["clip"] == math.inf and read_checkpoint_meta(path)["format_version"] == 1


def test_a_checkpoint_travels(tmp_path):
    save_checkpoint(tmp_path / "here", STATE, {})
    (tmp_path / "there").mkdir()
    os.rename(tmp_path / "here", tmp_path / "there" / "renamed")
    assert load_checkpoint(tmp_path / "there" / "renamed")[0]["trainer"] == STATE["trainer"]
    os.symlink(tmp_path / "there" / "renamed", tmp_path / "link")
    assert load_checkpoint(tmp_path / "link")[0]["trainer"] == STATE["trainer"]


def test_the_same_name_is_replaced_and_foreign_files_in_it_stay(tmp_path):
    path = save_checkpoint(tmp_path / "c", {"n": 1}, {})
    (path / "policy.onnx").write_bytes(b"exported")
    save_checkpoint(path, {"n": 2}, {})
    assert load_checkpoint(path)[0] == {"n": 2} and (path / "policy.onnx").read_bytes() == b"exported"
    assert os.listdir(tmp_path) == ["c"]


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_what_is_no_checkpoint_is_not_overwritten(tmp_path, kind):
    path = tmp_path / "thesis"
    if kind == "file":
        path.write_text("years of work")
    else:
        path.mkdir()
        (path / "chapter").write_text("years of work")
    with pytest.raises(CheckpointError, match="is no checkpoint, so it is not overwritten"):
        save_checkpoint(path, {}, {})
    assert (path if kind == "file" else path / "chapter").read_text() == "years of work"
    assert os.listdir(tmp_path) == ["thesis"]


def test_an_empty_directory_is_taken(tmp_path):
    (tmp_path / "c").mkdir()
    save_checkpoint(tmp_path / "c", {"n": 1}, {})
    assert load_checkpoint(tmp_path / "c")[0] == {"n": 1}


def test_a_state_that_cannot_be_saved_says_where(tmp_path):
    with pytest.raises(CheckpointError, match="trainer/callback is a builtins.builtin_function"):
        save_checkpoint(tmp_path / "c", {"trainer": {"callback": len}}, {})
    with pytest.raises(CheckpointError, match="JSON only"):
        save_checkpoint(tmp_path / "c", {}, {"weights": np.zeros(1)})
    with pytest.raises(CheckpointError, match="Keep long lists of numbers in arrays"):
        save_checkpoint(tmp_path / "c", {"history": "x" * 2**25}, {})
    assert os.listdir(tmp_path) == []


def test_another_algorithm_is_named(tmp_path):
    path = save_checkpoint(tmp_path / "c", STATE, {"algorithm": "DQN"})
    with pytest.raises(CheckpointError, match="it holds the algorithm 'DQN', not 'PPO'"):
        load_checkpoint(path, expected_algorithm="PPO")


def save_all(manager, rewards, key="episode_reward_mean"):
    for iteration, reward in enumerate(rewards, 1):
        manager.save({"n": iteration}, {"algorithm": "PPO"}, iteration, {key: reward})


def kept(manager):
    return [checkpoint.iteration for checkpoint in manager.checkpoints()]


def test_the_newest_and_the_best_are_kept(tmp_path):
    manager = CheckpointManager(tmp_path / "checkpoints", keep_num=2)
    assert manager.latest() is None and manager.best() is None and not (tmp_path / "checkpoints").exists()
    save_all(manager, [1.0, 9.0, 2.0, 3.0, 4.0])
    assert kept(manager) == [2, 4, 5]
    assert manager.latest().name == "checkpoint_000005" and manager.best().name == "checkpoint_000002"
    assert sorted(os.listdir(manager.root)) == [
        BEST_NAME,
        "checkpoint_000002",
        "checkpoint_000004",
        "checkpoint_000005",
    ]
    best = json.loads((manager.root / BEST_NAME).read_text())
    assert best == {"checkpoint": "checkpoint_000002", "iteration": 2, "metric": "episode_reward_mean", "score": 9.0}
    path, state, meta = manager.load_latest("PPO")
    assert path == manager.latest() and state == {"n": 5} and meta["iteration"] == 5


def test_a_manager_knows_what_an_earlier_process_saved(tmp_path):
    save_all(CheckpointManager(tmp_path, keep_num=2), [1.0, 9.0, 2.0, 3.0])
    manager = CheckpointManager(tmp_path, keep_num=2)
    assert kept(manager) == [2, 3, 4] and manager.best().name == "checkpoint_000002"
    manager.save({}, {}, 5, {"episode_reward_mean": 10.0})
    assert kept(manager) == [4, 5] and manager.best().name == "checkpoint_000005"


@pytest.mark.parametrize(
    "rewards, best",
    [
        ([math.nan, 1.0, 2.0], 3),
        ([2.0, math.nan, 1.0], 1),
        ([-math.inf, math.nan], 1),
        ([2.0, 2.0], 2),
        ([math.nan], None),
    ],
)
def test_nan_is_never_the_best(tmp_path, rewards, best):
    manager = CheckpointManager(tmp_path)
    save_all(manager, rewards)
    assert (manager.best().name if manager.best() else None) == (best and checkpoint_name(best))
    assert CheckpointManager(tmp_path).best() == manager.best()


@pytest.mark.parametrize("options", [{"score_order": "min"}, {"score_attr": "min-loss"}])
def test_less_may_be_better_and_keys_may_nest(tmp_path, options):
    manager = CheckpointManager(tmp_path, **{"score_attr": "loss", **options})
    save_all(manager, [3.0, 1.0, 2.0], key="loss")
    assert manager.best().name == "checkpoint_000002"
    nested = CheckpointManager(tmp_path / "nested", score_attr="evaluation/episode_reward_mean")
    save_all(nested, [{"episode_reward_mean": 5.0}, None, {"episode_reward_mean": np.float32(3)}], key="evaluation")
    assert nested.best().name == "checkpoint_000001"


def test_a_score_of_another_metric_does_not_count(tmp_path):
    save_all(CheckpointManager(tmp_path, score_attr="loss"), [5.0], key="loss")
    assert CheckpointManager(tmp_path).best() is None


def test_all_are_kept_without_a_limit_and_one_with_a_limit_of_one(tmp_path):
    save_all(manager := CheckpointManager(tmp_path / "all", keep_num=None), [1.0] * 8)
    assert kept(manager) == list(range(1, 9))
    save_all(manager := CheckpointManager(tmp_path / "one", keep_num=1), [1.0, 2.0, 3.0])
    assert kept(manager) == [3]
    with pytest.raises(ValueError, match="at least 1"):
        CheckpointManager(tmp_path, keep_num=0)


def test_order_is_by_iteration_not_by_the_clock(tmp_path):
    manager = CheckpointManager(tmp_path)
    for iteration in (999_999, 1_000_000):
        os.utime(manager.save({}, {}, iteration), (2e9 - iteration, 2e9 - iteration))
    assert CheckpointManager(tmp_path).latest().name == "checkpoint_1000000"


def test_a_run_that_went_back_has_its_newest_checkpoint_where_it_is_now(tmp_path):
    manager = CheckpointManager(tmp_path, keep_num=2)
    save_all(manager, [1.0, 9.0, 2.0, 3.0, 4.0])
    path = manager.save({}, {}, 3, {"episode_reward_mean": 1.0})  # after a restore of iteration 2
    assert path.is_dir() and kept(manager) == [2, 5, 3]
    for known in (manager, CheckpointManager(tmp_path, keep_num=2)):
        assert known.latest() == path and known.best().name == "checkpoint_000002"
    (tmp_path / checkpoint_name(5) / "checkpoint.json").write_text("{")
    assert CheckpointManager(tmp_path).latest().name == path.name


def test_latest_falls_back_with_a_warning_and_an_explicit_path_does_not(tmp_path, caplog):
    manager = CheckpointManager(tmp_path)
    save_all(manager, [1.0, 2.0, 3.0])
    for iteration in (2, 3):
        (tmp_path / checkpoint_name(iteration) / "state.safetensors").write_bytes(b"")
    assert CheckpointManager(tmp_path).latest().name == "checkpoint_000001"
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    assert "checkpoint_000003" in caplog.text and "Falling back" in caplog.text
    with pytest.raises(CheckpointError, match="checkpoint_000003"):
        load_checkpoint(tmp_path / checkpoint_name(3))
    (tmp_path / checkpoint_name(1) / "checkpoint.json").unlink()
    with pytest.raises(CheckpointError, match="(?s)No checkpoint of the run.*000003.*000002.*000001"):
        manager.latest()
    with pytest.raises(CheckpointError, match="There is no checkpoint in"):
        CheckpointManager(tmp_path / "none").load_latest()


def test_what_cannot_be_tidied_is_a_warning(tmp_path, monkeypatch, caplog):
    manager = CheckpointManager(tmp_path, keep_num=1)
    manager.save({}, {}, 1)

    def refuse(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("headwater.checkpoint.remove_checkpoint", refuse)
    manager.save({}, {}, 2)
    assert kept(manager) == [1, 2] and "could not be tidied" in caplog.text
    verify_checkpoint(manager.latest())
