"""Abeyance: an actor runtime for processes that host LLM agents.

What has to wait, waits in a record: a call to a limited model, a message that arrives mid-turn, a
tool call that a crash cut off. The README has two examples; docs/semantics.md has the guarantees.
"""

if (
    __name__ != "abeyance.actors"
):  # A second import under a bare name would make two of every class.
    raise ImportError("import abeyance.actors, not the folder 'actors' by its bare name")

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from ._version import __version__

if TYPE_CHECKING:
    from .cards import WaitCard, wait_card
    from .conversations import Conversation
    from .core import (
        LATER,
        ActorSystem,
        ChildSpec,
        HostedSystem,
        Supervisor,
        SupervisorSpec,
        TrioActor,
        TrioFuture,
    )
    from .domain.alert_book import Alert, AlertNotDeliveredError, AlertSink, Webhook
    from .domain.approvals import ApprovalReceipt, ApprovalRow, NeedsApproval
    from .domain.archive_book import ArchivedMessage
    from .domain.attaching import AudioBlock, DocumentBlock, ImageBlock, TextBlock
    from .domain.budgets import Budget
    from .domain.chosen_model import ModelReceipt
    from .domain.compacting import CompactingContext
    from .domain.context import ContextDesk, ContextStrategy, Summary
    from .domain.drafts import Draft
    from .domain.errors import (
        AttachmentTooLargeError,
        CallDeferredError,
        InboxFullError,
        MessageConflictError,
        MessageTooLargeError,
        RunExhaustedError,
        UnknownAgentError,
        UnknownAttachmentError,
    )
    from .domain.fallback import FallbackChain, ModelChoice
    from .domain.imports import ImportedMessage, ImportRepair, ImportReport
    from .domain.mode import QuiesceReceipt, ResumeReceipt
    from .domain.pairs import PairReceipt
    from .domain.policy import (
        Backoff,
        CallFailure,
        ErrorPolicy,
        GiveUp,
        Pacing,
        ProviderHold,
        Retry,
    )
    from .domain.prices import Price, Prices
    from .domain.protocol import ReleaseReceipt
    from .domain.retention import Retention
    from .domain.run_context import RunContext
    from .domain.run_errors import (
        RunEndedError,
        RunOpenError,
        RunOwnedElsewhereError,
        RunsParkedError,
        RunStateError,
        StepFailedError,
        UnknownRunError,
        UnknownWorkflowError,
    )
    from .domain.run_sessions import RunSession
    from .domain.run_steps import DidNotHappen, Happened, StepContext, step_context
    from .domain.schedule_errors import InvalidScheduleError, UnknownScheduleError
    from .domain.slot_cancel import CancelReceipt
    from .domain.slot_inbox import InboxRow
    from .domain.slot_messages import Receipt
    from .domain.spec import AgentSpec
    from .domain.spent_reading import UsageLine, UsageReport
    from .domain.streaming import (
        StreamDelta,
        StreamItem,
        StreamSkipped,
        StreamStored,
        StreamSuperseded,
    )
    from .domain.system_prompt import SystemPromptError, TurnInfo
    from .domain.tools import Tool, ToolContext, tool_context
    from .domain.transcript import TranscriptMessage
    from .domain.wait_book import ProviderWait
    from .handle import AgentHandle
    from .hosted import HostedRuntime
    from .hosted_agents import HostedAgent
    from .hosted_items import HostedItems
    from .hosted_runs import HostedRun
    from .opening import open_runtime
    from .ops.http.options import HttpApi
    from .outbox_reading import Outbox, OutboxReply
    from .outbox_status import OutboxBehind, OutboxStatus
    from .run_looking import RunHandle
    from .run_status import RunReceipt, RunStatus, RunStep, RunStepped
    from .runtime import Runtime
    from .scheduling import ScheduleOccurrence, ScheduleReceipt, ScheduleStatus
    from .status import AgentStatus, RuntimeStatus

__all__ = [
    "LATER",
    "ActorSystem",
    "AgentHandle",
    "AgentSpec",
    "AgentStatus",
    "Alert",
    "AlertNotDeliveredError",
    "AlertSink",
    "ApprovalReceipt",
    "ApprovalRow",
    "ArchivedMessage",
    "AttachmentTooLargeError",
    "AudioBlock",
    "Backoff",
    "Budget",
    "CallDeferredError",
    "CallFailure",
    "CancelReceipt",
    "ChildSpec",
    "CompactingContext",
    "ContextDesk",
    "ContextStrategy",
    "Conversation",
    "DidNotHappen",
    "DocumentBlock",
    "Draft",
    "ErrorPolicy",
    "FallbackChain",
    "GiveUp",
    "Happened",
    "HostedAgent",
    "HostedItems",
    "HostedRun",
    "HostedRuntime",
    "HostedSystem",
    "HttpApi",
    "ImageBlock",
    "ImportRepair",
    "ImportReport",
    "ImportedMessage",
    "InboxFullError",
    "InboxRow",
    "InvalidScheduleError",
    "MessageConflictError",
    "MessageTooLargeError",
    "ModelChoice",
    "ModelReceipt",
    "NeedsApproval",
    "Outbox",
    "OutboxBehind",
    "OutboxReply",
    "OutboxStatus",
    "Pacing",
    "PairReceipt",
    "Price",
    "Prices",
    "ProviderHold",
    "ProviderWait",
    "QuiesceReceipt",
    "Receipt",
    "ReleaseReceipt",
    "ResumeReceipt",
    "Retention",
    "Retry",
    "RunContext",
    "RunEndedError",
    "RunExhaustedError",
    "RunHandle",
    "RunOpenError",
    "RunOwnedElsewhereError",
    "RunReceipt",
    "RunSession",
    "RunStateError",
    "RunStatus",
    "RunStep",
    "RunStepped",
    "RunsParkedError",
    "Runtime",
    "RuntimeStatus",
    "ScheduleOccurrence",
    "ScheduleReceipt",
    "ScheduleStatus",
    "StepContext",
    "StepFailedError",
    "StreamDelta",
    "StreamItem",
    "StreamSkipped",
    "StreamStored",
    "StreamSuperseded",
    "Summary",
    "Supervisor",
    "SupervisorSpec",
    "SystemPromptError",
    "TextBlock",
    "Tool",
    "ToolContext",
    "TranscriptMessage",
    "TrioActor",
    "TrioFuture",
    "TurnInfo",
    "UnknownAgentError",
    "UnknownAttachmentError",
    "UnknownRunError",
    "UnknownScheduleError",
    "UnknownWorkflowError",
    "UsageLine",
    "UsageReport",
    "WaitCard",
    "Webhook",
    "__version__",
    "open_runtime",
    "step_context",
    "tool_context",
    "wait_card",
]

# A name is imported when it is asked for: whoever imports one module of the package, as the command
# line does, is not kept waiting for all of them. A test compares this with the imports above.
_HOMES: Final = {
    ".cards": ("WaitCard", "wait_card"),
    ".conversations": ("Conversation",),
    ".core": (
        "LATER",
        "ActorSystem",
        "ChildSpec",
        "HostedSystem",
        "Supervisor",
        "SupervisorSpec",
        "TrioActor",
        "TrioFuture",
    ),
    ".domain.alert_book": (
        "Alert",
        "AlertNotDeliveredError",
        "AlertSink",
        "Webhook",
    ),
    ".domain.approvals": ("ApprovalReceipt", "ApprovalRow", "NeedsApproval"),
    ".domain.archive_book": ("ArchivedMessage",),
    ".domain.attaching": ("AudioBlock", "DocumentBlock", "ImageBlock", "TextBlock"),
    ".domain.compacting": ("CompactingContext",),
    ".domain.context": (
        "ContextDesk",
        "ContextStrategy",
        "Summary",
    ),
    ".domain.drafts": ("Draft",),
    ".domain.errors": (
        "AttachmentTooLargeError",
        "CallDeferredError",
        "InboxFullError",
        "MessageConflictError",
        "MessageTooLargeError",
        "RunExhaustedError",
        "UnknownAgentError",
        "UnknownAttachmentError",
    ),
    ".domain.fallback": (
        "FallbackChain",
        "ModelChoice",
    ),
    ".domain.imports": (
        "ImportedMessage",
        "ImportRepair",
        "ImportReport",
    ),
    ".domain.mode": (
        "QuiesceReceipt",
        "ResumeReceipt",
    ),
    ".domain.budgets": ("Budget",),
    ".domain.chosen_model": ("ModelReceipt",),
    ".domain.pairs": ("PairReceipt",),
    ".domain.policy": (
        "Backoff",
        "CallFailure",
        "ErrorPolicy",
        "GiveUp",
        "Pacing",
        "ProviderHold",
        "Retry",
    ),
    ".domain.prices": ("Price", "Prices"),
    ".domain.protocol": ("ReleaseReceipt",),
    ".domain.retention": ("Retention",),
    ".domain.run_context": ("RunContext",),
    ".domain.run_errors": (
        "RunEndedError",
        "RunOpenError",
        "RunOwnedElsewhereError",
        "RunsParkedError",
        "RunStateError",
        "StepFailedError",
        "UnknownRunError",
        "UnknownWorkflowError",
    ),
    ".domain.run_sessions": ("RunSession",),
    ".domain.run_steps": (
        "DidNotHappen",
        "Happened",
        "StepContext",
        "step_context",
    ),
    ".domain.schedule_errors": ("InvalidScheduleError", "UnknownScheduleError"),
    ".domain.slot_cancel": ("CancelReceipt",),
    ".domain.slot_inbox": ("InboxRow",),
    ".domain.slot_messages": ("Receipt",),
    ".domain.spec": ("AgentSpec",),
    ".domain.spent_reading": ("UsageLine", "UsageReport"),
    ".domain.streaming": (
        "StreamDelta",
        "StreamItem",
        "StreamSkipped",
        "StreamStored",
        "StreamSuperseded",
    ),
    ".domain.system_prompt": ("SystemPromptError", "TurnInfo"),
    ".domain.tools": (
        "Tool",
        "ToolContext",
        "tool_context",
    ),
    ".domain.transcript": ("TranscriptMessage",),
    ".domain.wait_book": ("ProviderWait",),
    ".handle": ("AgentHandle",),
    ".hosted": ("HostedRuntime",),
    ".ops.http.options": ("HttpApi",),
    ".hosted_agents": ("HostedAgent",),
    ".hosted_items": ("HostedItems",),
    ".hosted_runs": ("HostedRun",),
    ".opening": ("open_runtime",),
    ".outbox_reading": ("Outbox", "OutboxReply"),
    ".outbox_status": ("OutboxBehind", "OutboxStatus"),
    ".run_status": (
        "RunReceipt",
        "RunStatus",
        "RunStep",
        "RunStepped",
    ),
    ".runtime": ("Runtime",),
    ".scheduling": (
        "ScheduleOccurrence",
        "ScheduleReceipt",
        "ScheduleStatus",
    ),
    ".status": (
        "AgentStatus",
        "RuntimeStatus",
    ),
    ".run_looking": ("RunHandle",),
}
_HOME: Final = {name: home for home, names in _HOMES.items() for name in names}


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        home = _HOME.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(home, __name__), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *_HOME})
