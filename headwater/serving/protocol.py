"""The messages between a policy server and its clients, version 1; `GET /openapi.json` is made of them.

**Values.** An observation or action is nested as its space: an object for a Dict, a list for a Tuple, numbers in
(nested) lists for an array. With several agents it is an object {agent id: value}.

**Bodies.** `application/json`; or `application/x-headwater-arrays`, which is a safetensors file whose metadata has the
JSON under "message", with `{"$array": NAME}` in place of each array that is a tensor of that name.

**Requests are idempotent.** Each that changes something has a `request_id`, unique in its client; the answer to one
that was answered before is the same again, and nothing is done twice.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

PROTOCOL = "1"
PROTOCOL_HEADER = "X-Headwater-Protocol"
CLIENT_HEADER = "X-Headwater-Client"

Id = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:~-]{1,128}$")]
Value = Annotated[Any, Field(description="Nested as the space; with several agents {agent id: value}.")]


class Message(BaseModel):
    """The base of all: unknown fields, NaN and infinite numbers are refused."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True)


class Request(Message):
    """What changes something."""

    request_id: Id = Field(description="Unique in its client; a retry has that of the first try.")


class StartRequest(Request):
    """Begin an episode."""

    episode_id: Id | None = Field(None, description="One that no episode had; default: the server makes one.")
    training_enabled: bool = Field(True, description="Whether the episode is learned from.")


class StartReply(Message):
    """The episode has begun."""

    episode_id: Id


class Paid(Request):
    """What was paid since the latest action; with several agents by agent."""

    reward: float | dict[str, float] = 0.0
    info: dict[str, Any] | None = None
    terminateds: dict[str, bool] | None = Field(None, description="Agents that ended while the episode goes on.")
    truncateds: dict[str, bool] | None = Field(None, description="Agents that were cut while the episode goes on.")


class ReturnsRequest(Paid):
    """Pay the latest action; adds up until the next observation."""


class ActionRequest(Paid):
    """Ask for an action. What was paid before may come along."""

    observation: Value


class ActionReply(Message):
    """The action; or with status 202, that there is none yet: send the same request again."""

    status: Literal["ready", "wait"]
    action: Value = None


class LogActionRequest(Paid):
    """Tell of an action that was taken already, as the action space has it."""

    observation: Value
    action: Value


class EndRequest(Paid):
    """End an episode with its final observation."""

    observation: Value
    terminated: bool | None = Field(None, description="Whether it truly ended; default: unless truncated.")
    truncated: bool = Field(False, description="Whether it was only cut: what would have come is estimated.")


class EpisodeEnd(Message):
    """The end of an episode whose steps are sent together."""

    observation: Value
    terminated: bool
    truncated: bool


class StepsRequest(Request):
    """Steps of one episode, of one agent, that were taken with a copy of the policy, or logged."""

    episode_id: Id = Field(description="With first_step 0 the episode begins.")
    first_step: int = Field(ge=0, description="How many steps of the episode were sent before.")
    training_enabled: bool = True
    observations: Value = Field(description="T observations: arrays [T, ...], nested as the space.")
    actions: Value = Field(description="T actions: as sampled where there are dist_inputs, else as the env took them.")
    dist_inputs: Any = Field(None, description="[T, K] inputs of the distribution that the actions were drawn from.")
    rewards: Any = Field(description="[T] what was paid for each action, until the next.")
    infos: list[dict[str, Any] | None] | None = None
    end: EpisodeEnd | None = None


class StepsReply(Message):
    """How many steps of the episode the server has."""

    num_steps: int


class DoneReply(Message):
    """It is done."""

    status: Literal["done"] = "done"


class InfoReply(Message):
    """What a client has to know."""

    protocol: str
    library_version: str
    algorithm: str | None
    multi_agent: bool
    observation_space: dict[str, Any] = Field(description="As JSON; with several agents' own ones {agent id: space}.")
    action_space: dict[str, Any]
    max_body_bytes: int
    client_timeout_s: float


class ErrorReply(Message):
    """Why a request was refused."""

    error: str = Field(description="A code, e.g. unknown_episode, episode_lost, conflict, bad_value.")
    reason: str = Field(description="A sentence for people.")
