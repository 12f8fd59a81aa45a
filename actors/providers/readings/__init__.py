"""One module a provider: its signals as a table, and what kind of refusal a response is."""
