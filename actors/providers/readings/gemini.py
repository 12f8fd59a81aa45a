"""Gemini API: everything is in the body; no header states a wait."""

from __future__ import annotations

from . import google
from .table import Reading

READING = Reading(
    "gemini",
    "Gemini API",
    google.KINDS,
    google.UNTILS,
    lambda response: google.has_details(response) or google.words_of_client(response),
    aliases=("google", "google-ai", "google-gemini"),
    notes="The real error may be a JSON text within another's `message`.",
)
