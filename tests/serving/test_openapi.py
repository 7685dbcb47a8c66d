"""The OpenAPI document: good enough to write a client in another language."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from headwater.serving import openapi
from headwater.serving.server_app import ServerApp

jsonschema = pytest.importorskip("jsonschema")


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return json.loads(json.dumps(openapi.document("1.2.3")))


def nodes(tree: Any) -> Any:
    if isinstance(tree, dict):
        yield tree
        for value in tree.values():
            yield from nodes(value)
    if isinstance(tree, list):
        for value in tree:
            yield from nodes(value)


def test_it_has_the_shape_of_openapi(document: dict[str, Any]) -> None:
    assert document["openapi"].startswith("3.1") and document["info"]["version"] == "1.2.3"
    operations = [op for path in document["paths"].values() for op in path.values()]
    assert len({op["operationId"] for op in operations}) == len(operations)
    for path, methods in document["paths"].items():
        for operation in methods.values():
            declared = {p["name"] for p in operation["parameters"] if p["in"] == "path"}
            assert declared == set(re.findall(r"{(\w+)}", path))
            assert all(re.fullmatch(r"\d{3}", status) for status in operation["responses"])
            assert all(response["description"] for response in operation["responses"].values())


def test_all_references_lead_somewhere(document: dict[str, Any]) -> None:
    references = {node["$ref"] for node in nodes(document) if "$ref" in node}
    assert len(references) > 10
    for reference in references:
        found: Any = document
        for part in reference.removeprefix("#/").split("/"):
            found = found[part]


def test_its_schemas_are_json_schema(document: dict[str, Any]) -> None:
    for schema in document["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_it_names_what_is_served(serve: Any, document: dict[str, Any]) -> None:
    harness = serve()
    served = harness.http.get("/openapi.json").json()
    assert served["paths"] == document["paths"]
    routes = {(route.path, method) for route in ServerApp(harness.server).starlette().routes
              for method in route.methods if method != "HEAD"}  # fmt: skip
    assert routes == {(path, method.upper()) for path, methods in document["paths"].items() for method in methods}


def test_what_is_sent_and_answered_is_as_it_says(serve: Any, document: dict[str, Any]) -> None:
    """A client that knows the document alone: each message is checked against its schemas."""
    harness = serve()

    def call(method: str, path: str, message: Any = None, episode_id: str = "") -> Any:
        operation = document["paths"][path][method]
        if message is not None:
            check(operation["requestBody"]["content"]["application/json"]["schema"], message)
        response = harness.http.request(method, path.replace("{episode_id}", episode_id), json=message)
        declared = operation["responses"][str(response.status_code)]
        check(declared["content"]["application/json"]["schema"], response.json())
        return response.json()

    def check(schema: Any, value: Any) -> None:
        jsonschema.Draft202012Validator({**schema, "components": document["components"]}).validate(value)

    info = call("get", "/v1/info")
    assert info["protocol"] == "1" and info["observation_space"]["type"] == "Box"
    episode = call("post", "/v1/episodes", {"request_id": "1"})["episode_id"]
    one = "/v1/episodes/{episode_id}"
    assert call("post", f"{one}/action", {"request_id": "2", "observation": [0, 0]}, episode)["status"] == "ready"
    call("post", f"{one}/returns", {"request_id": "3", "reward": 1.0}, episode)
    call("post", f"{one}/log_action", {"request_id": "4", "observation": [0, 0], "action": 1}, episode)
    assert call("post", f"{one}/action", {"request_id": "5", "observation": [0]}, episode)["error"] == "bad_value"
    assert call("post", f"{one}/action", {"request_id": "6", "observation": [0, 0]}, "no")["error"] == "unknown_episode"
    call("post", f"{one}/end", {"request_id": "7", "observation": [0, 0], "truncated": True}, episode)
    steps = {"request_id": "8", "episode_id": "far", "first_step": 0, "observations": [[0, 0]], "actions": [1],
             "rewards": [1.0], "end": {"observation": [0, 0], "terminated": True, "truncated": False}}  # fmt: skip
    assert call("post", "/v1/steps", steps) == {"num_steps": 1}
    assert call("get", "/v1/policy")["error"] == "refused"
