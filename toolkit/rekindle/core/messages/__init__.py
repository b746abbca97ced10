"""Messages between the actors of an engine, and between the engine and its callers. They are frozen.

Submit, Cancel ─▶ Intake ─▶ Admit, Withdraw ─▶ Scheduler ─▶ Plan ─▶ Stepper ─▶ Dispatched ─▶ Settler
                   ▲  │ │                        ▲  ▲  │                                        │
         Tokenized │  │ └─ Rejected ─▶ caller    │  │  └─▶ Outputs ─▶ Detokenizer ─▶ Texts ─▶ caller
                   │  ▼ Tokenize                 │  └─── Stopped ◀──────┘                       │
                 Tokenizer                       └───────────────────── Settled ◀───────────────┘
                                    Advance ─▶ Grammars ─▶ Advanced, from the Scheduler and back to it

With several lanes, a Router stands between the shared actors (Intake, Tokenizer, Detokenizer) and the lanes. It takes
the messages in both directions, assigns requests to lanes, and merges the answers of lanes.
"""

from rekindle.core.messages.answers import Output, Outputs, Started, Stopped, Text, Texts
from rekindle.core.messages.grammars import Advance, Advanced
from rekindle.core.messages.lanes import FromLane, ToLane
from rekindle.core.messages.message import Message
from rekindle.core.messages.moves import (
    Collect,
    Collected,
    PagesStaged,
    PutPages,
    SendPages,
    StagePages,
    TakePages,
)
from rekindle.core.messages.pages import (
    Archive,
    CacheSaved,
    CacheSaving,
    Copy,
    Drop,
    Fetch,
    Fetched,
    Gathered,
    Offload,
    Offloaded,
    SaveCache,
    Write,
    Written,
)
from rekindle.core.messages.replicas import (
    Found,
    LaneBack,
    LaneLost,
    Lost,
    Received,
    RemoteOutput,
    RemoteOutputs,
    Returned,
)
from rekindle.core.messages.submission import (
    NO_PREFIX,
    Admit,
    Cancel,
    Continued,
    Conversation,
    OutputPrefix,
    Prompt,
    Rejected,
    Submit,
    Tokenize,
    Tokenized,
    Verbatim,
    Withdraw,
    goes_on,
)
from rekindle.core.messages.ticks import (
    Chunk,
    Dispatched,
    Onload,
    Overdue,
    Plan,
    Row,
    SampleRow,
    ScoreRow,
    Scoring,
    Settled,
    Summing,
    SumRow,
)
from rekindle.core.messages.weights import (
    InFlightPolicy,
    KeepWeights,
    NewWeights,
    UseWeights,
    WeightsKept,
    WeightsUsed,
)

__all__ = [
    "NO_PREFIX",
    "Admit",
    "Advance",
    "Advanced",
    "Archive",
    "CacheSaved",
    "CacheSaving",
    "Cancel",
    "Chunk",
    "Collect",
    "Collected",
    "Continued",
    "Conversation",
    "Copy",
    "Dispatched",
    "Drop",
    "Fetch",
    "Fetched",
    "Found",
    "FromLane",
    "Gathered",
    "InFlightPolicy",
    "KeepWeights",
    "LaneBack",
    "LaneLost",
    "Lost",
    "Message",
    "NewWeights",
    "Offload",
    "Offloaded",
    "Onload",
    "Output",
    "OutputPrefix",
    "Outputs",
    "Overdue",
    "PagesStaged",
    "Plan",
    "Prompt",
    "PutPages",
    "Received",
    "Rejected",
    "RemoteOutput",
    "RemoteOutputs",
    "Returned",
    "Row",
    "SampleRow",
    "SaveCache",
    "ScoreRow",
    "Scoring",
    "SendPages",
    "Settled",
    "StagePages",
    "Started",
    "Stopped",
    "Submit",
    "SumRow",
    "Summing",
    "TakePages",
    "Text",
    "Texts",
    "ToLane",
    "Tokenize",
    "Tokenized",
    "UseWeights",
    "Verbatim",
    "WeightsKept",
    "WeightsUsed",
    "Withdraw",
    "Write",
    "Written",
    "goes_on",
]
