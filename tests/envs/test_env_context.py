from __future__ import annotations

from headwater.envs.env_context import EnvContext


def test_it_is_the_env_config_and_says_where_the_env_stands() -> None:
    config = {"level": 3}
    context = EnvContext(config, worker_index=2, vector_index=1, num_workers=4, remote=True)
    assert context == config and isinstance(context, dict)
    context["level"] = 4
    assert config == {"level": 3}
    assert (context.worker_index, context.vector_index, context.num_workers, context.remote) == (2, 1, 4, True)
    assert "worker_index=2" in repr(context)


def test_copies_keep_what_is_not_replaced() -> None:
    context = EnvContext({"a": 1}, worker_index=2, num_workers=4)
    copy = context.copy_with(vector_index=3)
    assert (copy, copy.worker_index, copy.vector_index, copy.num_workers, copy.remote) == ({"a": 1}, 2, 3, 4, False)
    copy["a"] = 2
    assert context["a"] == 1
    assert context.copy_with({"b": 2}, worker_index=0, remote=True) == {"b": 2}
    assert context.copy_with(worker_index=0).worker_index == 0
