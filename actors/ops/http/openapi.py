"""The OpenAPI description of the HTTP API, made from the verbs themselves.

Pure.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, Final

import msgspec

from abeyance.actors._version import __version__

from ..answers import READING
from ..protocol import ErrorReport
from .answering import VERBS_HERE

_ERRORS: Final = {
    "400": "the request is malformed",
    "401": "a token is missing or wrong",
    "403": "it may not be asked for with this token, or from this page",
    "404": "there is no such verb, agent, model or run",
    "409": "what it names is in no state for it",
    "422": "the field that the error names is wrong",
    "429": "too many wrong tokens came from this address",
    "503": "the runtime is ending",
}


@functools.cache
def description() -> bytes:
    """The description, as JSON."""
    _, schemas = msgspec.json.schema_components(
        [*VERBS_HERE.values(), ErrorReport], ref_template="#/components/schemas/{name}"
    )
    paths: dict[str, Any] = {
        "/healthz": _plain("Whether the host's loop answers."),
        "/readyz": _plain("Whether the runtime is open; and whether it starts turns."),
        "/metrics": _plain("Figures for Prometheus.", "text/plain"),
        "/v1/events": _plain(
            "What happens from now on, as server-sent events; `kinds` picks some.",
            "text/event-stream",
            [{"name": "kinds", "in": "query", "schema": {"type": "string"}}],
        ),
    }
    for verb, kind in VERBS_HERE.items():
        paths[f"/v1/{verb}"] = _operation(verb, kind, schemas[kind.__name__])
    schemas = {name: schema for name, schema in schemas.items() if name == ErrorReport.__name__}
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "Abeyance", "version": __version__},
            "paths": paths,
            "components": {
                "schemas": schemas,
                "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            },
        }
    )


def _operation(verb: str, kind: type[msgspec.Struct], schema: dict[str, Any]) -> dict[str, Any]:
    needed = set(schema.get("required", ()))
    fields = {
        name: value
        for name, value in schema["properties"].items()
        if name not in ("verb", "protocol")
    }
    operation: dict[str, Any] = {
        "operationId": verb,
        "summary": inspect.getdoc(kind),
        "responses": {"200": _answer("what the command line prints with --json"), **_refusals()},
    }
    if kind in READING:
        operation["parameters"] = [
            {"name": name, "in": "query", "required": name in needed, "schema": value}
            for name, value in fields.items()
        ]
        return {"get": operation}
    body = {"type": "object", "properties": fields, "required": sorted(needed - {"verb"})}
    operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    operation["security"] = [{"token": []}]
    return {"post": operation}


def _plain(
    summary: str, kind: str = "application/json", parameters: list[Any] | None = None
) -> dict[str, Any]:
    answers = {"200": {"description": summary, "content": {kind: {}}}, **_refusals()}
    return {"get": {"summary": summary, "parameters": parameters or [], "responses": answers}}


def _answer(text: str) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": {"type": "object"}}}}


def _refusals() -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {"error": {"$ref": f"#/components/schemas/{ErrorReport.__name__}"}},
        "required": ["error"],
    }
    return {
        status: {"description": text, "content": {"application/json": {"schema": schema}}}
        for status, text in _ERRORS.items()
    }
