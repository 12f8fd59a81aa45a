"""The numbers that users are told: when a hold is looked at, told of, or not entered at all.

One place, so that the published texts can be held against them. A wait that a provider stated has
no limit: it is honoured in full.

Pure.
"""

from __future__ import annotations

from typing import Final

RECHECK_MS: Final = 30_000
"""What could not be read or stored is tried again, and a hold is looked at, at least this often."""
ALERT_PAST_MS: Final = 3_600_000
"""A hold that a wait carries past this raises an alert; one of exactly this length does not."""
EPHEMERAL_SLEEP_MAX_MS: Final = 600_000
"""The longest stated wait that an ephemeral run sleeps; past it the run ends with an error."""
COOLDOWN_MAX_MS: Final = 600_000
"""The longest pause that is guessed where a failure states no wait."""
COMPACTION_YIELD_MS: Final = 30_000
"""For how long a turn waits for a strategy's call that is out; then the call is abandoned."""
COMPACTION_CALL_MS_MAX: Final = 300_000
"""How long a strategy's call may take while no turn waits for it."""
