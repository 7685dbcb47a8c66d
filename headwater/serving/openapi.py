"""The OpenAPI document of a policy server, made of the messages themselves."""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import models_json_schema

from headwater.serving import protocol
from headwater.serving.bodies import ARRAYS_TYPE, JSON_TYPE

# method, path, what it does, request, reply, other statuses that it may have
_ROUTES: list[tuple[str, str, str, Any, Any, dict[str, str]]] = [
    ("get", "/v1/info", "Spaces, limits and the protocol's version.", None, protocol.InfoReply, {}),
    ("post", "/v1/episodes", "Begin an episode.", protocol.StartRequest, protocol.StartReply,
     {"409": "The id is or was in use.", "429": "Too many episodes are running."}),
    ("post", "/v1/episodes/{episode_id}/action", "Ask for an action; waits for it.", protocol.ActionRequest,
     protocol.ActionReply, {"202": "There is none yet: send the same request again."}),
    ("post", "/v1/episodes/{episode_id}/log_action", "Tell of an action that was taken already.",
     protocol.LogActionRequest, protocol.DoneReply, {"429": "Too many steps wait: send the same request again."}),
    ("post", "/v1/episodes/{episode_id}/returns", "Pay the latest action.", protocol.ReturnsRequest,
     protocol.DoneReply, {}),
    ("post", "/v1/episodes/{episode_id}/end", "End the episode.", protocol.EndRequest, protocol.DoneReply, {}),
    ("post", "/v1/steps", "Send steps of an episode that were taken elsewhere.", protocol.StepsRequest,
     protocol.StepsReply, {"429": "Too many steps wait: send the same request again."}),
    ("get", "/v1/policy", "The acting policy, for inference elsewhere; its version is the ETag.", None, None,
     {"304": "If-None-Match names the present version.", "409": "There is no policy that could be sent: act remotely.",
      "503": "The policy cannot be read now: try again."}),
    ("get", "/openapi.json", "This document.", None, None, {}),
]  # fmt: skip
_FAULTS = {
    "400": "The body or the protocol's version cannot be read.",
    "401": "The bearer token is wrong.",
    "404": "No such episode: unknown_episode.",
    "409": "The episode has ended, or another caller acts in it.",
    "410": "The episode is lost: begin a new one.",
    "413": "The body is too large.",
    "415": "The content type is neither JSON nor arrays.",
    "422": "A field or a value does not fit.",
}


def document(version: str) -> dict[str, Any]:
    """The document, OpenAPI 3.1.

    Args:
        version: of the library.

    Example:
        >>> sorted(document("1.0")["paths"])[:2]
        ['/openapi.json', '/v1/episodes']
    """
    models = [value for value in vars(protocol).values()
              if isinstance(value, type) and issubclass(value, protocol.Message)]  # fmt: skip
    _, schemas = models_json_schema(
        [(model, "validation") for model in models], ref_template="#/components/schemas/{model}"
    )
    paths: dict[str, Any] = {}
    for method, path, summary, request, reply, others in _ROUTES:
        paths.setdefault(path, {})[method] = _operation(method, path, summary, request, reply, others)
    return {
        "openapi": "3.1.0",
        "info": {"title": "headwater policy server", "version": version, "description": protocol.__doc__},
        "paths": paths,
        "components": {
            "schemas": schemas["$defs"],
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"bearer": []}, {}],
    }


def _operation(method: str, path: str, summary: str, request: Any, reply: Any, others: dict[str, str]) -> dict:
    faults = _FAULTS if method == "post" else {"401": _FAULTS["401"]}
    replies = {status: text for status, text in sorted({**faults, **others}.items())}
    responses: dict[str, Any] = {"200": {"description": "Done."}}
    if reply is not None:
        responses["200"]["content"] = _content(reply, [JSON_TYPE])
    elif path == "/v1/policy":
        responses["200"]["content"] = {ARRAYS_TYPE: {"schema": {"type": "string", "format": "binary"}}}
    for status, text in replies.items():
        responses[status] = {"description": text}
        if status == "202":
            responses[status]["content"] = _content(reply, [JSON_TYPE])
        elif status != "304":
            responses[status]["content"] = _content(protocol.ErrorReply, [JSON_TYPE])
    parameters = [_header(protocol.PROTOCOL_HEADER, "The client's version of the protocol.", protocol.PROTOCOL)]
    if method == "post":
        parameters.append(_header(protocol.CLIENT_HEADER, "The client; none but it may act in its episodes.", None))
    if "{episode_id}" in path:
        parameters.append({"name": "episode_id", "in": "path", "required": True, "schema": {"type": "string"}})
    name = path.strip("/").replace("/", "_").replace("{episode_id}_", "").replace(".", "_")
    operation = {"operationId": f"{method}_{name}", "summary": summary, "parameters": parameters,
                 "responses": responses}  # fmt: skip
    if request is not None:
        operation["requestBody"] = {"required": True, "content": _content(request, [JSON_TYPE, ARRAYS_TYPE])}
    return operation


def _content(model: Any, types: list[str]) -> dict[str, Any]:
    return {kind: {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}} for kind in types}


def _header(name: str, text: str, value: str | None) -> dict[str, Any]:
    schema = {"type": "string"} if value is None else {"type": "string", "const": value}
    return {"name": name, "in": "header", "required": False, "description": text, "schema": schema}
