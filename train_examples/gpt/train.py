"""Train a small GPT by DistributedDataParallel or FSDP2.

python train.py                                                                 one process, here
python train.py -m resources.procs_per_node=2 parallel=ddp,fsdp                 two runs of two ranks, here
python train.py -m scheduler=slurm resources.nodes=2 model=124m data=bin data.path='tokens/*.bin'
torchrun --standalone --nproc-per-node 2 train.py                               the same script under plain torchrun
"""

from __future__ import annotations

import logging
import signal
import time
from pathlib import Path

import checkpoint
import data
import determinism
import hydra
import optim
import parallel
import torch
import torch.distributed
from model import GPT, flops_per_token
from omegaconf import DictConfig
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import Subset

import hpc_hydra

log = logging.getLogger(__name__)
TIME_IS_UP = 75  # exit code (EX_TEMPFAIL): saved, and to be continued
PEAK_TFLOPS = {"H200": 989, "H100": 989, "A100": 312, "MI300A": 980, "MI300X": 1307, "MI250X": 191.5}  # bf16, dense


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg: DictConfig) -> dict[str, float]:
    """Return the loss on text that was held out and the speed: the results of this run in a sweep."""
    determinism.switch(cfg.deterministic, cfg.compile)
    with hpc_hydra.distributed(cfg) as dist:
        return train(cfg, dist)


def train(cfg: DictConfig, dist: hpc_hydra.Dist) -> dict[str, float]:
    device = dist.device
    say = log.info if dist.is_main else log.debug
    warned = listen()

    files = data.load(cfg.data)
    sequences, held_out = data.split(data.Sequences(files, cfg.model.context))
    loader = data.Loader(sequences, cfg.batch_size, cfg.micro_batch_size, dist.rank, dist.world_size, dist.seed)

    torch.manual_seed(dist.seed)
    plain = GPT(cfg.data.vocab_size, **cfg.model, recompute=cfg.recompute).to(device)
    work = flops_per_token(plain, cfg.model.context)
    if cfg.compile:
        for block in plain.blocks:
            block.compile()
    precision = choose_precision(cfg.precision, device)
    mesh = init_device_mesh(device.type, (dist.world_size,))
    model = parallel.spread(plain, cfg.parallel, mesh, precision)
    autocast = parallel.autocast(cfg.parallel, device, precision)
    optimizers = optim.build(cfg.optim, plain)
    say("%s, %s, %d ranks (%s)", data.describe(files, cfg.data), cfg.parallel.name, dist.world_size, device.type)
    say("Seed %d", dist.seed)  # launch.seed of a run that is to be this one again

    folder = Path(checkpoint.from_rank_0(str(Path(cfg.checkpoint_dir).absolute())))
    done = 0
    if facts := checkpoint.resume(folder, plain, optimizers):
        done, loader.position = facts["step"], facts["position"]
        say("Going on after step %d", done)

    model.train()
    speed = 0.0
    sums = torch.zeros(3, device=device)  # loss of the micro batches, their number, warnings
    since, start = done, time.perf_counter()
    for step in range(done + 1, cfg.steps + 1):
        optim.set_lr(optimizers, optim.schedule(step, cfg.steps, cfg.warmup_steps, cfg.final_lr))
        for number, (tokens, targets) in enumerate(loader.step(), 1):
            tokens, targets = tokens.to(device, non_blocking=True), targets.to(device, non_blocking=True)
            with parallel.synchronised(model, number == loader.accumulation), autocast:
                loss = model(tokens, targets)
                (loss / loader.accumulation).backward()
            sums[:2] += torch.stack([loss.detach(), torch.ones_like(loss)])
        torch.nn.utils.clip_grad_norm_(plain.parameters(), cfg.clip)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

        last = step == cfg.steps
        save = step % cfg.save_every == 0 or last
        if step % cfg.log_every == 0 or save:
            sums[2] = bool(warned)
            torch.distributed.all_reduce(sums)
            asked = dist.any_warned()  # also by a warning from before this program's handler
            total, count, warnings = sums.tolist()  # waits for the GPU
            sums.zero_()
            seconds = time.perf_counter() - start
            speed = (step - since) * cfg.batch_size * cfg.model.context / seconds
            use = mfu(speed * work / dist.world_size, cfg.peak_tflops, device)
            say("Step %d - Avg Loss: %.6f, %.0f tokens/s%s", step, total / count, speed, use)
            dist.log({"loss": total / count, "tokens/s": speed}, step=step)
            if save or warnings or asked:
                checkpoint.save(folder, step, plain, optimizers, {"position": loader.position}, cfg.keep)
            if (warnings or asked.stop) and not last:
                say("Asked to end (%s): saved after step %d", asked.reason or "time_limit", step)
                raise SystemExit(TIME_IS_UP)
            since, start = step, time.perf_counter()
    if cfg.deterministic:
        say("Fingerprint of the weights: %s", determinism.fingerprint(plain))
    loss = evaluate(plain, held_out, cfg.micro_batch_size, autocast, dist)
    say("Loss on %d sequences held out: %.6f", len(held_out), loss)
    return {"loss": loss, "tokens_per_second": round(speed)}


@torch.no_grad()
def evaluate(model: GPT, sequences: Subset, micro: int, autocast: torch.autocast, dist: hpc_hydra.Dist) -> float:
    """Return the mean loss over sequences; each rank takes as many, since FSDP2's ranks communicate in every step."""
    model.eval()
    sums = torch.zeros(2, device=dist.device)
    micro = max(min(micro, len(sequences) // dist.world_size), 1)
    for first in range(0, len(sequences) - micro * dist.world_size + 1, micro * dist.world_size):
        mine = first + dist.rank * micro
        rows = torch.stack([sequences[mine + i] for i in range(micro)]).to(dist.device)
        with autocast:
            sums += torch.stack([model(rows[:, :-1], rows[:, 1:]), torch.ones((), device=dist.device)])
    torch.distributed.all_reduce(sums)
    total, count = sums.tolist()
    return total / max(count, 1)


def listen() -> list[int]:
    """A list that is no longer empty once the launcher or the scheduler has warned that the job ends soon."""
    warned: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, _: warned.append(number))
    return warned


def choose_precision(precision: str, device: torch.device) -> torch.dtype:
    types = {"auto": torch.bfloat16 if device.type == "cuda" else torch.float32, "bf16": torch.bfloat16}
    types["none"] = torch.float32
    if precision not in types:
        raise ValueError(f"precision is {precision!r}; use {', '.join(types)}")
    return types[precision]


def mfu(flops: float, peak_tflops: float | None, device: torch.device) -> str:
    """Describe these operations per second as a fraction of a GPU's peak; empty if the peak is unknown."""
    if peak_tflops is None and device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        peak_tflops = next((peak for known, peak in PEAK_TFLOPS.items() if known in name), None)
    return f", MFU {flops / (peak_tflops * 1e12):.1%}" if peak_tflops else ""


if __name__ == "__main__":
    main()
