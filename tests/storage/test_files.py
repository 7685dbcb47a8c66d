import os

import pytest

from headwater.storage.files import AppendFile, drop_torn_line, replace_file


def test_replace_leaves_the_old_content_when_it_fails(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    replace_file(path, b"old")

    def refuse(*args):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["a.json"]


def test_append_continues_after_a_torn_line(tmp_path):
    path = tmp_path / "rows"
    path.write_bytes(b"one\ntw")
    file = AppendFile(path)
    assert not file.is_empty
    file.append(b"two\n")
    file.close()
    file.append(b"three\n")
    file.close()
    assert path.read_bytes() == b"one\ntwo\nthree\n"


def test_a_record_that_is_refused_half_way_is_taken_back(tmp_path, monkeypatch):
    path = tmp_path / "rows"
    file = AppendFile(path)
    file.append(b"one\n")
    write = os.write

    def write_some(descriptor, data):
        if len(data) < 6:
            raise OSError(28, "No space left on device")
        return write(descriptor, data[:3])

    with monkeypatch.context() as patched, pytest.raises(OSError):
        patched.setattr(os, "write", write_some)
        file.append(b"second\n")
    file.append(b"third\n")
    file.close()
    assert path.read_bytes() == b"one\nthird\n"


@pytest.mark.parametrize(
    "content, kept", [(b"", b""), (b"abc", b""), (b"a\n", b"a\n"), (b"a\n" + b"x" * 200_000, b"a\n")]
)
def test_only_the_torn_line_is_dropped(tmp_path, content, kept):
    path = tmp_path / "rows"
    path.write_bytes(content)
    drop_torn_line(path)
    assert path.read_bytes() == kept
