"""Explains SLURM's reason codes of pending jobs.

Source: https://slurm.schedmd.com/job_reason_codes.html. Codes of limits are explained by the parts of their names.
Pure. Must not know: jobs.
"""

from __future__ import annotations

import re

_CODES = {
    "Resources": "the requested resources are not free yet",
    "Priority": "jobs of higher priority come first",
    "Dependency": "it waits for another job",
    "DependencyNeverSatisfied": "the job that it waits for failed: it will never start",
    "BeginTime": "it may not start before a certain time (after a requeue: a short delay)",
    "JobArrayTaskLimit": "the array has its maximum of running elements (scheduler.array_parallelism)",
    "JobHeldUser": "held: scontrol release JOB",
    "JobHeldAdmin": "held by an administrator",
    "JobHoldMaxRequeue": "held, because it was requeued too often",
    "ReqNodeNotAvail": "a required node is down, drained, reserved or in use",
    "Reservation": "its reservation has not started",
    "ReservationDeleted": "its reservation was deleted (scheduler.reservation)",
    "NodeDown": "a required node is down",
    "Licenses": "no licence is free",
    "PartitionTimeLimit": "its time limit is above that of the partition (resources.time_limit)",
    "PartitionNodeLimit": "the partition does not allow this number of nodes, or some of its nodes are down",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition does not start jobs now",
    "PartitionConfig": "it asks for more nodes, time or GPUs than the partition has or allows",
    "Constraints": "no available node satisfies its constraints (scheduler.constraint)",
    "BadConstraints": "no node can ever satisfy its constraints",
    "DeadLine": "it cannot complete before its deadline",
    "Cleaning": "its last execution is being cleaned up",
    "Prolog": "the site's prolog is running",
    "InvalidAccount": "the account does not exist (scheduler.account)",
    "AccountNotAllowed": "the partition does not accept the account (scheduler.account)",
    "InvalidQOS": "the QOS does not exist (scheduler.qos)",
    "QOSNotAllowed": "the account or partition does not accept the QOS (scheduler.qos)",
    "QOSUsageThreshold": "the account is above the usage threshold of this QOS",
    "MaxMemPerLimit": "it requests more memory than allowed per CPU or node (resources.mem_per_node)",
    "BurstBufferResources": "no burst buffer is free",
    "BurstBufferStageIn": "data is being staged in",
    "FedJobLock": "the clusters of the federation are deciding which of them runs it",
    "JobLaunchFailure": "it could not be launched: ask the administrators",
    "AccountingPolicy": "it violates a limit of accounting",
    "AssociationJobLimit": "your account has reached its limit of jobs",
    "AssociationResourceLimit": "your account has reached a limit",
    "AssociationTimeLimit": "your account has reached its time limit",
    "QOSJobLimit": "the QOS has reached its limit of jobs",
    "QOSResourceLimit": "the QOS has reached a limit",
    "QOSTimeLimit": "the QOS has reached its time limit",
}
_THINGS = {
    "cpu": "CPUs",
    "node": "nodes",
    "mem": "memory",
    "memory": "memory",
    "gres": "GPUs or other generic resources",
    "jobs": "running jobs",
    "submitjob": "jobs in the queue",
    "submitjobs": "jobs in the queue",
    "wall": "time",
    "wallduration": "time (resources.time_limit)",
    "billing": "billing units",
    "license": "licences",
    "energy": "energy",
    "bb": "burst buffer",
    "unknown": "some resource",
}
_THING = r"(?P<thing>Cpu|Node|Memory|Mem|GRES|SubmitJobs?|Jobs|WallDuration|Wall|Billing|License|Energy|BB|Unknown)"
_OWNER = {"Assoc": "your account", "QOS": "the QOS"}
_LIMITS = (
    (rf"(Assoc|QOS)Grp{_THING}RunMinutes(Limit)?", "running jobs of {who} use all its minutes of {what}"),
    (rf"(Assoc|QOS)Grp{_THING}Minutes(Limit)?", "{who} has used up its minutes of {what}"),
    (rf"(Assoc|QOS)Grp{_THING}(Limit)?", "{who} has reached its limit of {what}"),
    (rf"(Assoc|QOS)Max{_THING}(PerUser)?(Limit)?", "you have reached the limit of {what} of {who}"),
    (rf"(Assoc|QOS)Max{_THING}MinutesPerJob(Limit)?", "it requests more minutes of {what} than {who} allows per job"),
    (rf"(Assoc|QOS)Max{_THING}PerJob(Limit)?", "it requests more {what} than {who} allows per job"),
    (rf"(Assoc|QOS)Max{_THING}PerNode(Limit)?", "it requests more {what} per node than {who} allows"),
    (rf"(Assoc|QOS)Min{_THING}(NotSatisfied)?", "it requests less {what} than {who} requires"),
    (rf"()Max{_THING}PerAccount", "your account has reached the limit of {what} of the QOS"),
)  # fmt: skip


_NEVER = frozenset(
    (
        *("DependencyNeverSatisfied", "PartitionTimeLimit", "PartitionNodeLimit", "PartitionConfig", "BadConstraints"),
        *("InvalidAccount", "AccountNotAllowed", "InvalidQOS", "QOSNotAllowed", "MaxMemPerLimit", "ReservationDeleted"),
        *("JobHoldMaxRequeue", "JobLaunchFailure", "QOSTimeLimit", "AssociationTimeLimit"),
    )
)  # unless the job, the partition or the limits are changed
_NEVER_OF_A_JOB = re.compile(r"(Assoc|QOS)(Max\w+Per(Job|Node)|MaxWall\w*|Min\w+)(Limit|NotSatisfied)?", re.IGNORECASE)


def never_starts(reason: str) -> bool:
    """Whether a job pending for this reason can never start, whichever other jobs end.

    Args:
        reason: the code, or the result of `explained`.
    """
    code = re.split("[:,]", reason, maxsplit=1)[0]
    return code in _NEVER or _NEVER_OF_A_JOB.fullmatch(code) is not None


def explained(reason: str) -> str:
    """Return the code with its meaning (``Priority: jobs of higher priority come first``); unknown codes unchanged."""
    code, comma, more = reason.partition(",")
    meaning = _CODES.get(code) or _limit(code)
    return f"{code}: {meaning}{comma}{more}" if meaning else reason


def _limit(code: str) -> str | None:
    for pattern, words in _LIMITS:
        if found := re.fullmatch(pattern, code, re.IGNORECASE):
            return words.format(who=_OWNER.get(found[1], ""), what=_THINGS[found["thing"].lower()])
    return None
