"""torchrun: its agent on each node, the supervisor of the agent, and the supervisor of each of its workers."""
