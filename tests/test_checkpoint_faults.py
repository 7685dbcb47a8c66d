import contextlib
import errno
import hashlib
import json
import os
import pickle
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time

import numpy as np
import pytest

from headwater.checkpoint import (
    CheckpointManager,
    checkpoint_name,
    clean_stale_temporaries,
    load_checkpoint,
    save_checkpoint,
    verify_checkpoint,
)
from headwater.errors import CheckpointError
from headwater.storage import checkpoint_files

STATE = {"weights": {"kernel": np.arange(200, dtype=np.float32)}, "kl_coeff": 0.2, "history": [1.5, float("inf")]}


@pytest.fixture
def path(tmp_path):
    return save_checkpoint(tmp_path / "c", STATE, {"algorithm": "PPO"})


def edit(path, change):
    """Apply `change` to the manifest and sign it again, as one who knows the format could."""
    manifest = json.loads((path / "checkpoint.json").read_text())
    change(manifest)
    manifest["digest"] = checkpoint_files.manifest_digest(manifest)
    (path / "checkpoint.json").write_text(json.dumps(manifest))


def put_tensors(path, data):
    """Replace the tensor file by `data` with a manifest that vouches for it."""
    (path / "state.safetensors").write_bytes(data)
    entry = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    edit(path, lambda manifest: manifest["files"].update({"state.safetensors": entry}))


def assert_refused(path, match):
    with pytest.raises(CheckpointError, match=match) as caught:
        load_checkpoint(path)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 1500
    return str(caught.value)


# Damage


def test_any_flipped_bit_is_noticed(path):
    rng = random.Random(0)
    for name in ("checkpoint.json", "state.safetensors"):
        whole = (path / name).read_bytes()
        for position in {0, len(whole) - 3, *rng.sample(range(len(whole) - 2), 150)}:
            damaged = bytearray(whole)
            damaged[position] ^= 1 << rng.randrange(8)
            (path / name).write_bytes(damaged)
            assert_refused(path, name)
        (path / name).write_bytes(whole)
    verify_checkpoint(path)


@pytest.mark.parametrize("name", ["checkpoint.json", "state.safetensors"])
def test_any_truncation_is_noticed(path, name):
    whole = (path / name).read_bytes()
    for length in {0, 1, 7, 8, 9, len(whole) // 2, len(whole) - 2}:
        (path / name).write_bytes(whole[:length])
        assert_refused(path, name)
    (path / name).write_bytes(whole + b"x")
    assert_refused(path, name)


def test_missing_files_are_named(path, tmp_path):
    (path / "state.safetensors").unlink()
    assert_refused(path, "its state.safetensors is missing")
    (path / "checkpoint.json").unlink()
    assert_refused(path, "it has no checkpoint.json")
    shutil.rmtree(path)
    assert_refused(path, "there is no such directory")
    save_checkpoint(tmp_path / checkpoint_name(3), STATE, {})
    assert "checkpoint_000003" in assert_refused(tmp_path, "it has no checkpoint.json")


@pytest.mark.parametrize("garbage", [b"", b"\x80\x04garbage", b"null", b"[]", b"\xff\xfe", b"9" * 5000, b'{"a": NaN'])
def test_a_manifest_of_garbage_is_refused(path, garbage):
    (path / "checkpoint.json").write_bytes(garbage)
    assert_refused(path, "checkpoint.json")


def test_a_newer_format_says_what_to_do(path):
    def change(manifest):
        manifest.update(format_version=2, versions={"headwater": "9.1"})

    edit(path, change)
    assert "pip install --upgrade headwater" in assert_refused(path, "format 2, written by headwater 9.1")
    for version in (0, -1, 1.0, True, "1", None, [10**400]):
        edit(path, lambda manifest, version=version: manifest.update(format_version=version))
        assert_refused(path, "format version")


def test_files_of_other_libraries_are_refused(path, tmp_path):
    edit(path, lambda manifest: manifest.update(format="another-library"))
    assert_refused(path, "Another program wrote it")
    for name, content in {"model.zip": b"PK\x03\x04", "checkpoint-12": pickle.dumps({"worker": 1})}.items():
        (tmp_path / name).write_bytes(content)
        assert_refused(tmp_path / name, "pickles and archives of other libraries are never loaded")
    (tmp_path / "rllib").mkdir()
    (tmp_path / "rllib" / "algorithm_state.pkl").write_bytes(b"")
    assert_refused(tmp_path / "rllib", "of another library")


# Hostility


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("exploded",)


def test_a_pickle_is_never_executed(path):
    put_tensors(path, pickle.dumps(Bomb()))
    assert_refused(path, "header of")
    (path / "checkpoint.json").write_bytes(pickle.dumps(Bomb()))
    assert_refused(path, "damaged")
    (path / "checkpoint.json").unlink()
    (path / "checkpoint.pkl").write_bytes(pickle.dumps(Bomb()))
    assert_refused(path, "has no checkpoint.json")
    assert not os.path.exists("exploded")


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "..\\secret", "state.safetensors/../../secret", "extra"])
def test_names_in_the_manifest_lead_nowhere(path, tmp_path, name):
    (tmp_path / "secret").write_bytes(b"x")
    entry = {"bytes": 1, "sha256": hashlib.sha256(b"x").hexdigest()}
    edit(path, lambda manifest: manifest["files"].update({name: entry}))
    assert_refused(path, "lists other files")
    edit(path, lambda manifest: manifest.update(files={name: entry}))
    assert_refused(path, "lists other files")
    edit(path, lambda manifest: manifest.update(files={"state.safetensors": [name]}))
    assert_refused(path, "lists other files")


@pytest.mark.parametrize("name", ["checkpoint.json", "state.safetensors"])
def test_links_devices_and_pipes_are_not_followed(path, tmp_path, name):
    os.rename(path / name, tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", path / name)
    assert_refused(path, f"its {name} is a link")
    (path / name).unlink()
    os.symlink(tmp_path / "nowhere", path / name)
    assert_refused(path, f"its {name} is a link")
    (path / name).unlink()
    os.mkfifo(path / name)
    assert_refused(path, f"its {name} is no regular file")
    (path / name).unlink()
    (path / name).mkdir()
    assert_refused(path, f"its {name} ")


def test_a_giant_header_is_refused_before_it_is_read(path):
    put_tensors(path, struct.pack("<Q", 10**9) + b"{}")
    assert_refused(path, "claims a header of 1000000000 bytes")
    put_tensors(path, struct.pack("<Q", 2**63) + b"{}")
    assert_refused(path, "claims a header")


def test_giant_sparse_files_are_refused_before_they_are_read(path):
    for name in ("state.safetensors", "checkpoint.json"):
        with open(path / name, "r+b") as file:
            file.truncate(2**40)
        if name == "state.safetensors":
            edit(path, lambda manifest: manifest["files"]["state.safetensors"].update(bytes=2**40))
            with open(path / name, "r+b") as file:
                file.write(struct.pack("<Q", 10**9))
        started = time.monotonic()
        assert_refused(path, name)
        assert time.monotonic() - started < 1


def safetensors_bytes(header, data=b""):
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


@pytest.mark.parametrize(
    "header",
    [
        {"a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 8]}},
        {"a": {"dtype": "F32", "shape": [2**62, 4], "data_offsets": [0, 8]}},
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 2**50]}},
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}},
        {"a": {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]}},
        {"a": {"dtype": "object", "shape": [1], "data_offsets": [0, 8]}},
        {"a": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}},
        {"a": 3},
        [],
    ],
)
def test_tensors_that_lie_about_themselves_are_refused(path, header):
    put_tensors(path, safetensors_bytes(header, bytes(8)))
    assert_refused(path, "does not make a state")


def test_deep_json_is_refused(path):
    deep = b"[" * 100_000 + b"]" * 100_000
    (path / "checkpoint.json").write_bytes(deep)
    assert_refused(path, "nested too deeply")
    (path / "checkpoint.json").write_bytes(b'{"a":' * 100_000 + b"1" + b"}" * 100_000)
    assert_refused(path, "nested too deeply")
    header = b'{"a":' + deep + b"}"
    put_tensors(path_again := save_checkpoint(path.with_name("d"), STATE, {}), struct.pack("<Q", len(header)) + header)
    assert_refused(path_again, "does not make a state")


def test_json_of_any_depth_is_an_answer_or_a_refusal(path):
    answers = refusals = 0
    for depth in range(100, 1200, 50):
        nested = json.loads('{"a":' * min(depth, 400) + "1" + "}" * min(depth, 400))
        for _ in range(depth - 400):
            nested = {"a": nested}
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(5000)
        edit(path, lambda manifest, nested=nested: manifest.update(state=nested))
        sys.setrecursionlimit(limit)
        try:
            load_checkpoint(path)
            answers += 1
        except CheckpointError as error:
            assert "deep" in str(error) or "RecursionError" in str(error)
            refusals += 1
        with contextlib.suppress(CheckpointError):
            save_checkpoint(path.with_name("again"), {"nested": nested}, {})
    assert answers and refusals


def test_a_tag_executes_nothing(path):
    for tag in ({"$class": "os:system"}, {"$array": "../x"}, {"$scalar": ["O", 1]}, {"__reduce__": 1, "$array": "no"}):
        edit(path, lambda manifest, tag=tag: manifest.update(state={"x": tag}))
        if len(tag) == 1:
            assert_refused(path, "does not make a state")
        else:
            assert load_checkpoint(path)[0] == {"x": tag}
    edit(path, lambda manifest: manifest.update(state=[1]))
    assert_refused(path, "no JSON object")
    edit(path, lambda manifest: manifest.update(meta=[1]))
    assert_refused(path, "lacks the meta")


# Full disks and killed processes


def test_a_full_disk_leaves_the_old_ones_and_no_temporary(tmp_path):
    manager = CheckpointManager(tmp_path)
    manager.save({"w": np.zeros(10)}, {}, 1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(
            CheckpointError, match="could not be written: File too large. Earlier checkpoints are intact"
        ):
            manager.save({"w": np.zeros(100_000)}, {}, 2)
        with pytest.raises(CheckpointError, match="could not be written"):
            manager.save({"w": np.ones(100_000)}, {}, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert os.listdir(tmp_path) == ["checkpoint_000001"] and manager.num_failed == 2
    assert np.array_equal(load_checkpoint(manager.latest())[0]["w"], np.zeros(10))
    manager.save({}, {}, 3)
    assert manager.latest().name == "checkpoint_000003"


@pytest.mark.parametrize("function", ["fsync", "rename"])
def test_an_error_of_the_disk_at_any_call_loses_nothing(tmp_path, monkeypatch, function):
    path = save_checkpoint(tmp_path / "c", {"n": 0}, {})
    original = getattr(os, function)
    for failing in range(6):
        calls = iter(range(100))

        def fail(*args, failing=failing, calls=calls):
            if next(calls) == failing:
                raise OSError(errno.EIO, "Input/output error")
            return original(*args)

        with monkeypatch.context() as patched:
            patched.setattr(os, function, fail)
            try:
                save_checkpoint(path, {"n": failing + 1}, {})
            except CheckpointError as error:
                assert "Input/output error" in str(error)
        assert load_checkpoint(path)[0]["n"] in (failing, failing + 1)
        save_checkpoint(path, {"n": failing + 1}, {})
    assert os.listdir(tmp_path) == ["c"]


def test_an_interrupt_leaves_no_temporary(tmp_path, monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(tmp_path / "c", STATE, {})
    assert os.listdir(tmp_path) == []


def test_a_directory_that_cannot_be_made_is_an_error_of_the_checkpoint(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="could not be written"):
        save_checkpoint(tmp_path / "file" / "c", STATE, {})


SAVER = """
import sys, numpy as np
from headwater.checkpoint import CheckpointManager, save_checkpoint
root = sys.argv[1]
manager = CheckpointManager(root, keep_num=2)
n = max([checkpoint.iteration for checkpoint in manager.checkpoints()], default=0)
print("ready", flush=True)
while True:
    n += 1
    state = {"n": n, "w": np.full(5000, n)}
    manager.save(state, {"algorithm": "PPO"}, n, {"episode_reward_mean": float(n % 7)})
    save_checkpoint(root + "/same", state, {})
    print(n, flush=True)
"""


def test_a_kill_at_any_moment_leaves_a_whole_newest_one(tmp_path):
    rng = random.Random(1)
    newest = 0
    for _ in range(8):
        process = subprocess.Popen([sys.executable, "-c", SAVER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline() == "ready\n"
        for _ in range(rng.randint(1, 3)):
            process.stdout.readline()
        time.sleep(rng.uniform(0.0, 0.02))
        process.send_signal(signal.SIGKILL)
        printed = process.communicate()[0].split()
        state = load_checkpoint(tmp_path / "same")[0]  # before any manager has cleaned up
        assert np.array_equal(state["w"], np.full(5000, state["n"]))
        manager = CheckpointManager(tmp_path)
        newest = max(newest + 1, int(printed[-1]) if printed else 0)
        state = load_checkpoint(manager.latest())[0]
        assert state["n"] >= newest and np.array_equal(state["w"], np.full(5000, state["n"]))
        newest = state["n"]
        assert not [name for name in os.listdir(tmp_path) if name.startswith(".tmp") or name.startswith(".old")]
        for checkpoint in manager.checkpoints():
            verify_checkpoint(checkpoint.path)
        assert json.loads((tmp_path / "best.json").read_text())["checkpoint"] in os.listdir(tmp_path)


def save_and_die(path, step):
    """Replace the checkpoint in a process that is killed at its `step`-th call that touches the disk's directories."""
    pid = os.fork()
    if pid:
        return os.waitpid(pid, 0)[1]
    calls = iter(range(100))

    def killing(original):
        def call(*args, **keywords):
            if next(calls) == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*args, **keywords)

        return call

    for name in ("mkdir", "fsync", "rename", "unlink", "rmdir"):
        setattr(os, name, killing(getattr(os, name)))
    with contextlib.suppress(BaseException):
        save_checkpoint(path, {"n": 2}, {})
    os._exit(0)


@pytest.mark.parametrize("finder", ["load", "clean"])
def test_a_kill_before_each_call_to_the_disk_loses_nothing(tmp_path, finder):
    outcomes = []
    for step in range(100):
        path = save_checkpoint(tmp_path / "c", {"n": 1}, {})
        status = save_and_die(path, step)
        if finder == "clean":
            clean_stale_temporaries(tmp_path)
            assert os.listdir(tmp_path) == ["c"]
        outcomes.append(load_checkpoint(path)[0]["n"])
        clean_stale_temporaries(tmp_path)
        assert os.listdir(tmp_path) == ["c"]
        if status == 0:
            break
    assert outcomes == sorted(outcomes) and set(outcomes) == {1, 2} and len(outcomes) > 8


@pytest.fixture
def dead_pid():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_only_temporaries_of_our_own_dead_processes_are_cleaned(tmp_path, dead_pid):
    living = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        stale = [f".tmp-checkpoint_000001-{dead_pid}-0123abcd", f".del-checkpoint_000001-{dead_pid}-0123abcd"]
        stale.append(f".tmp-checkpoint_000001-{os.getpid()}-0123abcd")  # of a former process with our id
        others = [
            f".tmp-checkpoint_000001-{living.pid}-0123abcd",
            f".tmp-checkpoint_000001-{dead_pid}-xyz",
            ".tmp-notes",
            "tmp-checkpoint_000001",
        ]
        for name in stale + others:
            (tmp_path / name).mkdir()
            (tmp_path / name / "state.safetensors").write_bytes(b"half")
        foreign = tmp_path / f".tmp-c-{dead_pid}-0123abcd"
        foreign.mkdir()
        (foreign / "thesis").write_text("not ours")
        os.symlink(tmp_path / others[-1], tmp_path / f".tmp-link-{dead_pid}-0123abcd")
        (tmp_path / f".tmp-file-{dead_pid}-0123abcd").write_text("a file")
        assert sorted(path.name for path in clean_stale_temporaries(tmp_path)) == sorted(stale)
        assert set(os.listdir(tmp_path)) == {
            *others,
            foreign.name,
            f".tmp-link-{dead_pid}-0123abcd",
            f".tmp-file-{dead_pid}-0123abcd",
        }
    finally:
        living.communicate(b"\n")


@pytest.mark.parametrize("finder", ["load", "clean"])
def test_a_replacement_that_was_cut_between_its_renames_is_undone(tmp_path, dead_pid, finder):
    path = save_checkpoint(tmp_path / "c", {"n": 1}, {})
    os.rename(path, tmp_path / f".old-c-{dead_pid}-0123abcd")
    if finder == "clean":
        clean_stale_temporaries(tmp_path)
    assert load_checkpoint(path)[0] == {"n": 1} and os.listdir(tmp_path) == ["c"]


def test_a_replacement_that_was_cut_after_its_renames_is_finished(tmp_path, dead_pid):
    path = save_checkpoint(tmp_path / "c", {"n": 2}, {})
    old = save_checkpoint(tmp_path / "before", {"n": 1}, {}).rename(tmp_path / f".old-c-{dead_pid}-0123abcd")
    (old / "notes").write_text("kept")
    clean_stale_temporaries(tmp_path)
    assert load_checkpoint(path)[0] == {"n": 2} and os.listdir(tmp_path) == ["c"] and (path / "notes").exists()
