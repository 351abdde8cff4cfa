"""``train.py``: a complete training script for the plan, on random tokens, with Accelerate's public interface only."""

from __future__ import annotations

from typing import Final

TRAIN_SCRIPT: Final = '''\
"""Trains a causal language model on random tokens with Hugging Face Accelerate; written by shardwise for a plan.

The layout comes from accelerate.yaml. Put your own data set in the place of RandomTokens.
"""

import argparse
import math
import os
import time

import torch
from accelerate import Accelerator
from accelerate.utils import GradientAccumulationPlugin, set_seed
from torch.utils.data import DataLoader, Dataset
from transformers import AutoConfig, AutoModelForCausalLM, get_cosine_schedule_with_warmup


class RandomTokens(Dataset):
    """Sequences of random tokens, the same in every run."""

    def __init__(self, sequences, length, vocabulary):
        self.sequences, self.length, self.vocabulary = sequences, length, vocabulary

    def __len__(self):
        return self.sequences

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(self.vocabulary, (self.length + 1,), generator=generator)
        return {"input_ids": tokens[:-1], "shift_labels": tokens[1:]}


def arguments():
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--model", required=True, help="name or folder of a transformers model")
    parser.add_argument("--sequence_length", type=int, required=True)
    parser.add_argument("--per_device_train_batch_size", type=int, required=True)
    parser.add_argument("--gradient_accumulation_steps", type=int, required=True)
    parser.add_argument("--optim", choices=("adamw_torch_fused", "sgd"), default="adamw_torch_fused")
    parser.add_argument("--max_steps", type=int, default=100)
    parser.add_argument("--learning_rate", type=float, default=1e-4)
    parser.add_argument("--warmup_steps", type=int, default=0)
    parser.add_argument("--weight_decay", type=float, default=0.1)
    parser.add_argument("--max_grad_norm", type=float, default=1.0)
    parser.add_argument("--from_scratch", action="store_true", help="random weights, from the configuration alone")
    parser.add_argument("--seed", type=int, default=42)
    return parser.parse_args()


def load_model(args, accelerator):
    """The model, split over the tensor parallel ranks where the plan has them."""
    layout = accelerator.parallelism_config
    kinds = {"attn_implementation": "sdpa", "use_cache": False, "dtype": torch.float32}
    if layout is not None and layout.tp_enabled:
        try:
            from transformers.integrations.tensor_parallel import ReplicateParallel  # noqa: F401
        except ImportError:
            raise SystemExit("train.py: FSDP2 with tensor parallelism needs a release of transformers that has "
                             "ReplicateParallel, which Accelerate 1.15 asks for: transformers 4.57 has it") from None
        kinds |= {"tp_plan": "auto", "tp_size": layout.tp_size, "device_mesh": accelerator.torch_device_mesh}
        return AutoModelForCausalLM.from_pretrained(args.model, **kinds)
    if args.from_scratch:
        config = AutoConfig.from_pretrained(args.model, use_cache=False)
        return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.float32)
    return AutoModelForCausalLM.from_pretrained(args.model, **kinds)


def optimizer_of(args, model):
    if args.optim == "sgd":
        return torch.optim.SGD(model.parameters(), lr=args.learning_rate, momentum=0.9, weight_decay=args.weight_decay)
    return torch.optim.AdamW(
        model.parameters(), lr=args.learning_rate, betas=(0.9, 0.95), weight_decay=args.weight_decay, fused=True
    )


def loss_of(model, batch, accelerator):
    """Mean loss of one micro-batch; its sequence is divided over the context parallel ranks where there are any."""
    tokens, labels = batch["input_ids"], batch["shift_labels"]
    positions = torch.arange(tokens.shape[1], device=tokens.device).unsqueeze(0)
    buffers = [tokens, labels, positions]
    dims = [1] * len(buffers)
    with accelerator.maybe_context_parallel(buffers=buffers, buffer_seq_dims=dims, no_restore_buffers=set(buffers)):
        logits = model(input_ids=tokens, position_ids=positions).logits.float()
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        accelerator.backward(loss)
    return loss.detach()


def main():
    args = arguments()
    accelerator = Accelerator(
        # Gradients are reduced after every micro-batch: without it each rank would hold all of them.
        gradient_accumulation_plugin=GradientAccumulationPlugin(
            num_steps=args.gradient_accumulation_steps, sync_each_batch=True
        )
    )
    set_seed(args.seed)
    layout = accelerator.parallelism_config
    replicas = layout.data_parallel_size if layout else accelerator.num_processes
    planned = int(os.environ.get("PLANNED_GPUS", accelerator.num_processes))
    if planned != accelerator.num_processes:
        raise SystemExit(f"train.py: {accelerator.num_processes} processes, but the plan is for {planned}")
    model = load_model(args, accelerator)
    optimizer = optimizer_of(args, model)
    schedule = get_cosine_schedule_with_warmup(optimizer, args.warmup_steps, args.max_steps)
    sequences = args.max_steps * args.gradient_accumulation_steps * args.per_device_train_batch_size * replicas
    data = RandomTokens(sequences, args.sequence_length, model.config.vocab_size)
    loader = DataLoader(data, batch_size=args.per_device_train_batch_size)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    model.train()
    step, losses, begin = 0, [], time.perf_counter()
    for batch in loader:
        with accelerator.accumulate(model):
            losses.append(loss_of(model, batch, accelerator))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), args.max_grad_norm)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            schedule.step()
            step += 1
            mean = torch.stack(losses).mean().item()
            now = time.perf_counter()
            peak = torch.cuda.max_memory_allocated() / 2**20 if torch.cuda.is_available() else math.nan
            accelerator.print(
                f"step {step}: loss {mean:.4f}, time per step (s): {now - begin:.4f}, max allocated: {peak:.0f}",
                flush=True,
            )
            losses, begin = [], now
        if step == args.max_steps:
            break
    accelerator.end_training()


if __name__ == "__main__":
    main()
'''
"""The same for every plan."""
