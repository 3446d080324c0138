"""Train the GPT of ../gpt by DiLoCo or MuLoCo, or by plain data parallelism to compare.

python train.py -m resources.procs_per_node=2 algorithm=diloco,muloco algorithm.replicas=2
python train.py -m rendezvous=torchft rendezvous.replicas_per_node=2 resources.procs_per_node=2 algorithm=muloco
"""

from __future__ import annotations

import logging
import signal
import sys
import time
from pathlib import Path

import hydra
import torch
import torch.distributed
from omegaconf import DictConfig

import hpc_hydra

sys.path.append(str(Path(__file__).resolve().parents[1] / "gpt"))  # its model, data, optimizers and checkpoints
import checkpoint
import data
import optim
import parallel
import sizes  # noqa: F401  (the resolvers of conf/)
from model import GPT
from outer import Outer
from replicas import join, local

log = logging.getLogger(__name__)
TIME_IS_UP = 75  # exit code (EX_TEMPFAIL): saved, and to be continued


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg: DictConfig) -> dict[str, float]:
    """Return the loss on text that was held out and the speed: the results of this run in a sweep."""
    with hpc_hydra.distributed(cfg) as dist:
        return train(cfg, dist)


def train(cfg: DictConfig, dist: hpc_hydra.Dist) -> dict[str, float]:
    device = dist.device
    warned: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, _: warned.append(number))
    averages = cfg.algorithm.name == "diloco"
    every = cfg.algorithm.sync_every // cfg.algorithm.fragments  # steps of a round
    if cfg.steps % cfg.algorithm.sync_every or cfg.algorithm.sync_every % cfg.algorithm.fragments:
        raise ValueError(f"steps is {cfg.steps}; it must be a multiple of algorithm.sync_every and of its fragments")

    torch.manual_seed(dist.seed)
    shape = cfg.model
    plain = GPT(cfg.data.vocab_size, shape.context, shape.layers, shape.heads, shape.width, cfg.recompute).to(device)
    optimizers: list[torch.optim.Optimizer] = []

    def state() -> list[torch.Tensor]:
        kept = [outer.agreed, outer.moving] if averages else []
        inner = [part for o in optimizers for one in o.state.values() for _, part in sorted(one.items())]
        everything = [*plain.parameters(), *(tensor for part in kept for tensor in part.values()), *inner]
        return [local(tensor.detach()) for tensor in everything]

    replicas = join(cfg, dist, state)
    if replicas.count > 1 and not averages:
        raise ValueError(f"algorithm={cfg.algorithm.name} has no replicas; use algorithm=diloco or muloco")
    precision = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = parallel.spread(plain, cfg.parallel, replicas.mesh, precision)
    autocast = parallel.autocast(cfg.parallel, device, precision)
    optimizers += optim.build(cfg.optim, plain)
    outer = Outer(plain, cfg.algorithm)

    ranks, rank = replicas.mesh.size(), replicas.mesh.get_local_rank()
    say = log.info if rank == 0 else log.debug
    me = f"Replica {replicas.number}: " if replicas.count > 1 else ""
    sequences, held_out = data.split(data.Sequences(data.load(cfg.data), shape.context))
    everyone = replicas.count * ranks
    micro = max(min(cfg.micro_batch_size, cfg.batch_size // everyone), 1)
    loader = data.Loader(sequences, cfg.batch_size, micro, replicas.number * ranks + rank, everyone, dist.seed)
    say("%s%s with %s, %d replicas of %d ranks (%s), %d steps", me, cfg.algorithm.name, cfg.optim.name,
        replicas.count, ranks, device.type, cfg.steps)  # fmt: skip

    folder = Path(checkpoint.from_rank_0(str(Path(cfg.checkpoint_dir).absolute()))) / f"replica_{replicas.number}"
    own = replicas.mesh.get_group()
    if facts := checkpoint.resume(folder, plain, optimizers, outer.tensors(), own):
        replicas.round = facts["step"] // every
        say("%sGoing on after step %d", me, facts["step"])

    speed = 0.0
    while (done := replicas.round * every) < cfg.steps:
        start = time.perf_counter()
        sums = torch.zeros(2, device=device)  # loss, warnings
        plain.train()
        for step in range(done + 1, done + every + 1):
            optim.set_lr(optimizers, optim.schedule(step, cfg.steps, cfg.warmup_steps, cfg.final_lr))
            loader.position = (step - 1) * cfg.batch_size  # of all replicas
            for number, (tokens, targets) in enumerate(loader.step(), 1):
                tokens, targets = tokens.to(device, non_blocking=True), targets.to(device, non_blocking=True)
                with parallel.synchronised(model, number == loader.accumulation), autocast:
                    loss = model(tokens, targets)
                    (loss / loader.accumulation).backward()
                sums[0] += loss.detach() / loader.accumulation / every
            torch.nn.utils.clip_grad_norm_(plain.parameters(), cfg.clip)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()

        if averages:
            replicas.meet()
            before = replicas.round
            if before != done // every:
                say("%sTook over the state of another after step %d", me, before * every)
            if not outer.step(replicas):
                say("%sA replica was lost: the round is repeated", me)
                continue
        else:
            replicas.round += 1
        step = replicas.round * every
        sums[1] = bool(warned)
        torch.distributed.all_reduce(sums)
        asked = dist.any_warned()
        loss, warnings = (sums / torch.distributed.get_world_size()).tolist()
        speed = every * cfg.batch_size / replicas.count * shape.context / (time.perf_counter() - start)
        say("%sStep %d - Avg Loss: %.6f, %.0f tokens/s", me, step, loss, speed)
        if step // cfg.save_every > done // cfg.save_every or step == cfg.steps or warnings or asked:
            checkpoint.save(folder, step, plain, optimizers, {}, cfg.keep, outer.tensors(), own)
        if (warnings or asked.stop) and step < cfg.steps:
            say("%sAsked to end (%s): saved after step %d", me, asked.reason or "time_limit", step)
            raise SystemExit(TIME_IS_UP)

    loss = evaluate(plain, held_out, cfg.micro_batch_size, autocast, device)
    say("%sLoss on %d sequences held out: %.6f", me, len(held_out), loss)
    replicas.close()
    return {"loss": loss, "tokens_per_second": round(speed * replicas.count)}


@torch.no_grad()
def evaluate(model: GPT, sequences, micro: int, autocast: torch.autocast, device: torch.device) -> float:
    """Return the mean loss over sequences; every rank computes all of them, as FSDP2's ranks communicate."""
    model.eval()
    total, count = torch.zeros((), device=device), 0
    for first in range(0, len(sequences), micro):
        rows = torch.stack([sequences[i] for i in range(first, min(first + micro, len(sequences)))]).to(device)
        with autocast:
            total += model(rows[:, :-1], rows[:, 1:]) * len(rows)
        count += len(rows)
    return total.item() / count


if __name__ == "__main__":
    main()
