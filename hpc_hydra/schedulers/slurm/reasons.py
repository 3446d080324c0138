"""Why SLURM lets a job wait, in words.

Source: https://slurm.schedmd.com/job_reason_codes.html, its codes by name and, of the many limits, by their parts.
Pure. Must not know: jobs.
"""

from __future__ import annotations

import re

_CODES = {
    "Resources": "what it asks for is not free yet",
    "Priority": "jobs of higher priority come first",
    "Dependency": "it waits for another job",
    "DependencyNeverSatisfied": "the job that it waits for did not end well: it will never begin",
    "BeginTime": "it may not begin before a certain time (after a requeue: a little later)",
    "JobArrayTaskLimit": "no more of this array may run at a time (scheduler.array_parallelism)",
    "JobHeldUser": "held: scontrol release JOB",
    "JobHeldAdmin": "held by the site's staff",
    "JobHoldMaxRequeue": "held, as it was requeued too often",
    "ReqNodeNotAvail": "a node that it needs is down, drained, reserved or in use",
    "Reservation": "its reservation has not begun",
    "ReservationDeleted": "its reservation is gone (scheduler.reservation)",
    "NodeDown": "a node that it needs is down",
    "Licenses": "no licence is free",
    "PartitionTimeLimit": "its time limit is above that of the partition (resources.time_limit)",
    "PartitionNodeLimit": "its number of nodes is outside of what the partition allows, or nodes of it are down",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition starts no jobs now",
    "PartitionConfig": "it is against a limit of the partition",
    "Constraints": "no node fulfils its constraints now (scheduler.constraint)",
    "BadConstraints": "no node can ever fulfil what it asks for",
    "DeadLine": "it cannot end before its deadline",
    "Cleaning": "it is being cleaned up after its last execution",
    "Prolog": "the site's prolog runs",
    "InvalidAccount": "the account does not exist (scheduler.account)",
    "AccountNotAllowed": "the partition does not take the account (scheduler.account)",
    "InvalidQOS": "the QOS does not exist (scheduler.qos)",
    "QOSNotAllowed": "the account or partition does not take the QOS (scheduler.qos)",
    "QOSUsageThreshold": "the account has used too much for this QOS",
    "MaxMemPerLimit": "more memory than allowed per CPU or node (resources.mem_per_node)",
    "BurstBufferResources": "no burst buffer is free",
    "BurstBufferStageIn": "data is being staged in",
    "FedJobLock": "the clusters of the federation agree on who runs it",
    "JobLaunchFailure": "it could not be launched: the site's staff may know why",
    "AccountingPolicy": "it is against a limit of accounting",
    "AssociationJobLimit": "your account has as many jobs as it may have",
    "AssociationResourceLimit": "your account has reached a limit",
    "AssociationTimeLimit": "your account has reached its time limit",
    "QOSJobLimit": "the QOS has as many jobs as it may have",
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
    (rf"(Assoc|QOS)Grp{_THING}RunMinutes(Limit)?", "running jobs of {who} take all its minutes of {what}"),
    (rf"(Assoc|QOS)Grp{_THING}Minutes(Limit)?", "{who} has used up its minutes of {what}"),
    (rf"(Assoc|QOS)Grp{_THING}(Limit)?", "{who} is at its limit of {what}"),
    (rf"(Assoc|QOS)Max{_THING}(PerUser)?(Limit)?", "you are at the limit of {what} that {who} sets"),
    (rf"(Assoc|QOS)Max{_THING}MinutesPerJob(Limit)?", "it asks for more minutes of {what} than {who} allows a job"),
    (rf"(Assoc|QOS)Max{_THING}PerJob(Limit)?", "it asks for more {what} than {who} allows a job"),
    (rf"(Assoc|QOS)Max{_THING}PerNode(Limit)?", "it asks for more {what} on a node than {who} allows"),
    (rf"(Assoc|QOS)Min{_THING}(NotSatisfied)?", "it asks for less {what} than {who} demands"),
    (rf"()Max{_THING}PerAccount", "your account is at the limit of {what} that the QOS sets"),
)  # fmt: skip


_NEVER = frozenset(
    (
        *("DependencyNeverSatisfied", "PartitionTimeLimit", "PartitionNodeLimit", "PartitionConfig", "BadConstraints"),
        *("InvalidAccount", "AccountNotAllowed", "InvalidQOS", "QOSNotAllowed", "MaxMemPerLimit", "ReservationDeleted"),
        *("JobHoldMaxRequeue", "JobLaunchFailure", "QOSTimeLimit", "AssociationTimeLimit"),
    )
)  # while the job, the partition and the limits are what they are
_NEVER_OF_A_JOB = re.compile(r"(Assoc|QOS)(Max\w+Per(Job|Node)|MaxWall\w*|Min\w+)(Limit|NotSatisfied)?", re.IGNORECASE)


def never_starts(reason: str) -> bool:
    """Whether a job that waits for this reason will not start as it is: no end of other jobs changes anything.

    Args:
        reason: the code, or what `explained` makes of it.
    """
    code = re.split("[:,]", reason, maxsplit=1)[0]
    return code in _NEVER or _NEVER_OF_A_JOB.fullmatch(code) is not None


def explained(reason: str) -> str:
    """The code with its meaning: ``Priority: jobs of higher priority come first``; what is no known code as it is."""
    code, comma, more = reason.partition(",")
    meaning = _CODES.get(code) or _limit(code)
    return f"{code}: {meaning}{comma}{more}" if meaning else reason


def _limit(code: str) -> str | None:
    for pattern, words in _LIMITS:
        if found := re.fullmatch(pattern, code, re.IGNORECASE):
            return words.format(who=_OWNER.get(found[1], ""), what=_THINGS[found["thing"].lower()])
    return None
