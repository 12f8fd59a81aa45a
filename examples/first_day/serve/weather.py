"""The tools that host.toml names."""

from abeyance.actors import Tool


def _look(place: str) -> str:
    return f"{place}: rain, 12 degrees"


look = Tool(
    name="look",
    description="The weather at a place.",
    input_schema={"type": "object", "properties": {"place": {"type": "string"}}},
    run=_look,
)
