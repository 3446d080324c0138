"""What only some schedulers can do. An adapter inherits from the capabilities that it has; callers use `isinstance`.

`capability_checks.check` refuses what a missing capability excludes.
Must not know: any scheduler.
"""

from hpc_hydra.schedulers.capabilities.allocations import (
    JobSteps,
    LostHosts,
    NestedQueue,
    Packing,
    RequeuePacks,
    StepSignals,
)
from hpc_hydra.schedulers.capabilities.console import Attach, BatchScripts, InteractiveShell
from hpc_hydra.schedulers.capabilities.job_end import (
    EndWarning,
    JobEndQuery,
    Requeue,
    RequeueCommand,
    RequeueElsewhere,
    RequeueExitCode,
    Resubmission,
    ResubmissionElsewhere,
    SurvivesNodeLoss,
)
from hpc_hydra.schedulers.capabilities.nodes import (
    AutoDetection,
    ClusterName,
    ContainerLaunch,
    HostList,
    MpiTasks,
    NodeExclusion,
    NodeFacts,
    NodeList,
    NodeStates,
    PerNodeCommands,
    ReplicaLaunch,
    SpareNodes,
    TaskVariables,
)
from hpc_hydra.schedulers.capabilities.submission import (
    ArrayCheck,
    BulkSubmission,
    Dependencies,
    FindJobs,
    GracefulCancel,
    JobArrays,
    ShellDefaults,
    SubmitAdvice,
)

__all__ = [
    "ArrayCheck",
    "Attach",
    "AutoDetection",
    "BatchScripts",
    "BulkSubmission",
    "ClusterName",
    "ContainerLaunch",
    "Dependencies",
    "EndWarning",
    "FindJobs",
    "GracefulCancel",
    "HostList",
    "InteractiveShell",
    "JobArrays",
    "JobEndQuery",
    "JobSteps",
    "LostHosts",
    "MpiTasks",
    "NestedQueue",
    "NodeExclusion",
    "NodeFacts",
    "NodeList",
    "NodeStates",
    "Packing",
    "PerNodeCommands",
    "ReplicaLaunch",
    "Requeue",
    "RequeueCommand",
    "RequeueElsewhere",
    "RequeueExitCode",
    "RequeuePacks",
    "Resubmission",
    "ResubmissionElsewhere",
    "ShellDefaults",
    "SpareNodes",
    "StepSignals",
    "SubmitAdvice",
    "SurvivesNodeLoss",
    "TaskVariables",
]
