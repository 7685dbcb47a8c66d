"""Whatever is sent, the answer is a refusal with a reason, never a fault of ours, and the sampler goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater.serving.bodies import ARRAYS_TYPE, encode
from tests.serving.harness import Harness

ONE = spaces.Dict({"box": spaces.Box(-1, 1, (2,)), "rest": spaces.Tuple([spaces.Discrete(3), spaces.MultiBinary(2)])})
ENDPOINTS = ["episodes", "episodes/run/action", "episodes/run/log_action", "episodes/run/returns", "episodes/run/end",
             "episodes/none/action", "steps"]  # fmt: skip
FIELDS = ["request_id", "episode_id", "observation", "action", "reward", "info", "terminateds", "truncateds",
          "terminated", "truncated", "training_enabled", "first_step", "observations", "actions", "dist_inputs",
          "rewards", "infos", "end", "box", "rest", "$array"]  # fmt: skip
leaves = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**30), 10**30), st.integers(-2, 3), st.floats(), st.text(max_size=5),
    st.sampled_from(["run", "0", "1.5"]),
)  # fmt: skip
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)
good = st.just({"box": [0.5, 0.5], "rest": [1, [0, 1]]})
messages = st.dictionaries(st.sampled_from(FIELDS), values | good, max_size=6)


@pytest.fixture(scope="module")
def harness() -> Iterator[Harness]:
    made = Harness(act=lambda obs: {"box": np.zeros(2), "rest": (0, [0, 0])}, observation_space=ONE, action_space=ONE)
    made.start(episode_id="run")
    yield made
    made.stop()


def assert_refused_or_done(harness: Harness, response: Any) -> None:
    assert response.status_code < 500, response.text
    if response.status_code >= 400:
        assert set(response.json()) == {"error", "reason"}
    assert harness.loop.error is None
    if not harness.server.episodes.is_running("run"):
        pytest.fail("a message of this test ended the episode of another")


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(endpoint=st.sampled_from([e for e in ENDPOINTS if not e.endswith("run/end")]), message=messages)
def test_any_json(harness: Harness, endpoint: str, message: dict[str, Any]) -> None:
    message = {"request_id": str(abs(hash(repr(message)))), **message}
    if message.get("episode_id") == "run":
        del message["episode_id"]
    body = json.dumps(message)
    url = f"/v1/{endpoint}"
    assert_refused_or_done(harness, harness.http.post(url, content=body, headers={"Content-Type": "application/json"}))


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(endpoint=st.sampled_from(ENDPOINTS), data=st.data())
def test_damaged_arrays(harness: Harness, endpoint: str, data: Any) -> None:
    body = bytearray(
        encode({"request_id": "x", "observation": {"box": np.zeros(2), "rest": [1, np.zeros(2)]}}, ARRAYS_TYPE)
    )
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(body)))
    url = f"/v1/{endpoint}".replace("run/end", "none/end")
    response = harness.http.post(url, content=bytes(body[:cut]), headers={"Content-Type": ARRAYS_TYPE})
    assert_refused_or_done(harness, response)
