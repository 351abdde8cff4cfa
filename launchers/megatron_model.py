"""The model description as arguments of Megatron-LM's ``pretrain_gpt.py``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from shardwise.costmodel.model import AttentionCore, LayerKind, Linear, Mixer, Mlp, ModelSpec, Moe
from shardwise.costmodel.problem import Problem
from shardwise.hardware_profiles.errors import InputError

from .facts import is_mla, used_kinds
from .megatron_families import GELUS, NOT_EXPRESSIBLE, SILUS, SQUARED_RELUS, Family, base_of, epsilon_of, family_of

Args = list[str]

_PLAIN = {"qkv", "attention_out"}
_LATENT = {"q", "q_down", "q_up", "kv_down", "kv_up", "attention_out"}
_HEAD_NORMS, _LATENT_NORMS = {"q_norm", "k_norm"}, {"q_latent_norm", "kv_latent_norm"}
_CLAMPED_GATE = ("--quick-geglu", "--glu-linear-offset", "1.0", "--activation-func-clamp-value", "7.0")


@dataclass(frozen=True, slots=True)
class ModelArguments:
    """``shape`` builds the model; ``facts`` change no shape; ``assumptions`` say what was taken."""

    shape: tuple[str, ...]
    facts: tuple[str, ...]
    assumptions: tuple[str, ...]


def check_model(problem: Problem) -> None:
    """Raise InputError naming the layer kind if ``pretrain_gpt.py`` cannot build the model."""
    model = problem.model
    if model.architecture in NOT_EXPRESSIBLE:
        _refuse(model, f"family {model.architecture}", NOT_EXPRESSIBLE[model.architecture])
    _check_frame(model)
    kinds = used_kinds(model, problem.workload.train_mtp)
    for kind in kinds:
        _check_kind(model, kind)
    _check_same(model, kinds)
    if problem.workload.train_mtp and model.mtp and learned_positions(model) is not None:
        _refuse(model, "the embedding", "multi-token prediction with learned positions")
    _check_arithmetic(model, kinds)


def model_arguments(problem: Problem) -> ModelArguments:
    """All arguments that describe the model. Raises InputError naming the layer kind that cannot be expressed."""
    check_model(problem)
    model, work = problem.model, problem.workload
    kinds = used_kinds(model, work.train_mtp)
    family, known = family_of(model)
    notes = [] if known else [f"{model.architecture or model.name} is no known family: plain rotary positions, epsilon "
                              "1e-5 and a softmax router were assumed"]  # fmt: skip
    shape = ["--num-layers", str(model.num_layers), "--hidden-size", str(model.hidden_size)]
    shape += _attention(model, kinds[0]) + _windows(model) + _feed_forward(model, kinds, family)
    shape += _experts(model, problem, kinds) + _norms_and_biases(kinds, family)
    shape += ["--seq-length", str(work.sequence_length), *_embedding(model, work.sequence_length)]
    if work.train_mtp and model.mtp:
        shape += ["--mtp-num-layers", str(len(model.mtp))]
    facts = _facts(model, kinds, family, notes)
    return ModelArguments(tuple(shape), tuple(facts), tuple(notes))


# ---- what can be expressed


def _refuse(model: ModelSpec, kind: LayerKind | str, why: str) -> NoReturn:
    what = kind if isinstance(kind, str) else f"layer kind {kind.name!r}"
    raise InputError(f"{model.name}: {what}: Megatron's pretrain_gpt.py cannot express {why}")


def _check_frame(model: ModelSpec) -> None:
    if model.embedding_dim not in (None, model.hidden_size):
        _refuse(model, "the embedding", f"an embedding {model.embedding_dim} wide under a width of {model.hidden_size}")
    for extra in model.embedding_extras:
        if "position" not in extra.name or extra.parameters % model.hidden_size:
            _refuse(model, "the embedding", f"{extra.name!r} after the embedding")
    for extra in model.head_extras:
        if not extra.norm:
            _refuse(model, "the head", f"{extra.name!r} on the output head")


def _check_arithmetic(model: ModelSpec, kinds: tuple[LayerKind, ...]) -> None:
    family, _ = family_of(model)
    base = base_of(model, family)
    if learned_positions(model) is None and not float(base).is_integer():
        _refuse(model, "the positions", f"a rotary base of {base:g}, which is no whole number")
    word, mlp = model.activation, _first_mlp(kinds)
    if word is None or mlp is None or (mlp.gated and family.clamped_gate):
        return
    known = SILUS | {"quick_gelu"} if mlp.gated else GELUS | SQUARED_RELUS
    if word not in known:
        _refuse(model, "the feed-forward", f"the activation {word}{' in a gate' if mlp.gated else ''}")


def _first_mlp(kinds: tuple[LayerKind, ...]) -> Mlp | None:
    dense = next((k.mlp for k in kinds if k.mlp), None)
    return dense or next((k.moe.expert for k in kinds if k.moe), None)


def _check_kind(model: ModelSpec, kind: LayerKind) -> None:
    if kind.mixer is None or not isinstance(kind.mixer.core, AttentionCore):
        _refuse(model, kind, f"a {kind.mixer.kind if kind.mixer else 'missing'} token mixer")
    if (kind.mlp is None) == (kind.moe is None):
        _refuse(model, kind, "a layer without exactly one feed-forward")
    if kind.parallel_residual:
        _refuse(model, kind, "attention and feed-forward in parallel")
    if kind.extras:
        _refuse(model, kind, f"{kind.extras[0].name!r} beside attention and feed-forward")
    if len(kind.norms) != 2 or any(n.parameters not in (model.hidden_size, 2 * model.hidden_size) for n in kind.norms):
        _refuse(model, kind, f"{len(kind.norms)} norms a layer of {sum(n.parameters for n in kind.norms)} weights")
    _check_mixer(model, kind, kind.mixer, kind.mixer.core)
    if kind.moe is not None:
        _check_moe(model, kind, kind.moe)
    if kind.mlp is not None and kind.mlp.extras:
        _refuse(model, kind, f"{kind.mlp.extras[0].name!r} in the feed-forward")


def _check_mixer(model: ModelSpec, kind: LayerKind, mixer: Mixer, core: AttentionCore) -> None:
    latent = is_mla(kind)
    names = {op.name for op in mixer.linears}
    if not names <= (_LATENT if latent else _PLAIN) or "attention_out" not in names:
        odd = sorted(names - (_LATENT if latent else _PLAIN)) or sorted(names)
        _refuse(model, kind, f"the attention projection {', '.join(odd)}")
    if core.selected_keys or core.compression != 1 or core.indexer_heads or not core.causal:
        _refuse(model, kind, "sparse, compressed or bidirectional attention")
    if not latent and core.qk_head_dim != core.v_head_dim:
        _refuse(model, kind, "value heads of another size than key heads")
    if latent and core.window is not None:
        _refuse(model, kind, "latent attention with a window")
    extras = {e.name for e in mixer.extras}
    if not extras <= (_LATENT_NORMS if latent else _HEAD_NORMS | {"sinks"}):
        _refuse(model, kind, f"{', '.join(sorted(extras))} in the attention")
    if not latent and any(e.parameters != core.qk_head_dim for e in mixer.extras if e.name in _HEAD_NORMS):
        _refuse(model, kind, "query and key norms over all heads together")


def _check_moe(model: ModelSpec, kind: LayerKind, moe: Moe) -> None:
    if moe.latent_linears:
        _refuse(model, kind, "experts in a latent space")
    if moe.extras or moe.expert.extras:
        _refuse(model, kind, f"{(*moe.extras, *moe.expert.extras)[0].name!r} of the router or the experts")
    if moe.shared is not None and (moe.shared.gated, moe.shared.bias) != (moe.expert.gated, moe.expert.bias):
        _refuse(model, kind, "a shared expert unlike the routed ones")
    if any(e.name != "shared_expert_gate" for e in moe.shared_extras):
        _refuse(model, kind, f"{moe.shared_extras[0].name!r} on the shared expert")


def _check_same(model: ModelSpec, kinds: tuple[LayerKind, ...]) -> None:
    first = kinds[0]
    for kind in kinds[1:]:
        if _but_window(kind.mixer) != _but_window(first.mixer):
            _refuse(model, kind, f"other attention shapes than those of {first.name!r}")
    windows = {k.mixer.core.window for k in kinds if k.mixer and isinstance(k.mixer.core, AttentionCore)} - {None}
    dense = {k.mlp for k in kinds if k.mlp}
    moes = {k.moe for k in kinds if k.moe}
    if len(windows) > 1 or len(dense) > 1 or len(moes) > 1:
        _refuse(model, kinds[-1], "windows, feed-forwards or expert layers of several shapes")
    gated = {m.gated for m in (*dense, *(m.expert for m in moes))}
    if len(gated) > 1:
        _refuse(model, kinds[-1], "gated and plain feed-forwards together")


def _but_window(mixer: Mixer | None) -> object:
    assert mixer is not None and isinstance(mixer.core, AttentionCore)
    c = mixer.core
    return mixer.linears, mixer.extras, c.num_heads, c.num_kv_heads, c.qk_head_dim, c.v_head_dim


# ---- arguments


def _linear(mixer: Mixer, name: str) -> Linear | None:
    return next((op for op in mixer.linears if op.name == name), None)


def _core(kind: LayerKind) -> tuple[Mixer, AttentionCore]:
    assert kind.mixer is not None and isinstance(kind.mixer.core, AttentionCore)
    return kind.mixer, kind.mixer.core


def _attention(model: ModelSpec, kind: LayerKind) -> Args:
    mixer, core = _core(kind)
    args = ["--num-attention-heads", str(core.num_heads)]
    if is_mla(kind):
        return args + _latent(mixer, core)
    if core.num_kv_heads != core.num_heads:
        args += ["--group-query-attention", "--num-query-groups", str(core.num_kv_heads)]
    args += ["--kv-channels", str(core.qk_head_dim)]
    extras = {e.name for e in mixer.extras}
    args += ["--softmax-type", "learnable"] if "sinks" in extras else []
    return [*args, "--qk-layernorm"] if extras & _HEAD_NORMS else args


def _latent(mixer: Mixer, core: AttentionCore) -> Args:
    down, up = _linear(mixer, "kv_down"), _linear(mixer, "kv_up")
    q_down = _linear(mixer, "q_down")
    assert down is not None and up is not None
    kv_rank = up.in_features
    rotary = down.out_features - kv_rank
    args = ["--multi-latent-attention", "--kv-lora-rank", str(kv_rank)]
    if q_down is not None:
        args += ["--q-lora-rank", str(q_down.out_features)]
    args += ["--qk-head-dim", str(core.qk_head_dim - rotary), "--qk-pos-emb-head-dim", str(rotary)]
    args += ["--v-head-dim", str(core.v_head_dim), "--kv-channels", str(core.v_head_dim)]
    return [*args, "--qk-layernorm"] if mixer.extras else args


def _windows(model: ModelSpec) -> Args:
    spans = [_core(model.kinds[k])[1].window for k in model.layers]
    window = next((w for w in spans if w is not None), None)
    if window is None:
        return []
    # A window of w keys counts the token itself; Megatron's pair counts the keys to its left and right.
    args = ["--window-size", f"({window - 1},0)"]
    if None in spans:
        args += ["--window-attn-skip-freq", layer_pattern([w is not None for w in spans])]
    return args


def layer_pattern(flags: list[bool]) -> str:
    """A 0/1 entry per layer in Megatron's spelling: ``([0]*3+[1]*58)``."""
    runs: list[tuple[int, int]] = []
    for flag in flags:
        count = runs.pop()[1] if runs and runs[-1][0] == int(flag) else 0
        runs.append((int(flag), count + 1))
    return "(" + "+".join(f"[{flag}]*{count}" for flag, count in runs) + ")"


def _feed_forward(model: ModelSpec, kinds: tuple[LayerKind, ...], family: Family) -> Args:
    mlp = _first_mlp(kinds)
    assert mlp is not None
    args = ["--ffn-hidden-size", str(mlp.width)]
    if mlp.gated:
        gate = "--quick-geglu" if model.activation == "quick_gelu" else "--swiglu"
        args += _CLAMPED_GATE if family.clamped_gate else (gate,)
    elif family.squared_relu if model.activation is None else model.activation in SQUARED_RELUS:
        args.append("--squared-relu")
    return args


def _experts(model: ModelSpec, problem: Problem, kinds: tuple[LayerKind, ...]) -> Args:
    moe = next((k.moe for k in kinds if k.moe), None)
    if moe is None:
        return []
    args = ["--num-experts", str(moe.num_experts), "--moe-router-topk", str(moe.top_k)]
    args += ["--moe-ffn-hidden-size", str(moe.expert.width)]
    routed = [model.kinds[k].moe is not None for k in model.layers]
    if not all(routed):
        args += ["--moe-layer-freq", layer_pattern(routed)]
    if moe.shared is not None:
        args += ["--moe-shared-expert-intermediate-size", str(moe.shared.width)]
        args += ["--moe-shared-expert-gate"] if moe.shared_extras else []
    if moe.num_groups:
        args += ["--moe-router-num-groups", str(moe.num_groups), "--moe-router-group-topk", str(moe.top_groups)]
    return [*args, "--moe-grouped-gemm", "--moe-router-dtype", "fp32"]


def _norms_and_biases(kinds: tuple[LayerKind, ...], family: Family) -> Args:
    rms = kinds[0].norms[0].parameters == kinds[0].mixer.linears[0].in_features if kinds[0].mixer else True
    args = ["--normalization", "RMSNorm" if rms else "LayerNorm"]
    args += ["--apply-layernorm-1p"] if family.norm_plus_one else []
    mixer, _ = _core(kinds[0])
    inputs = [op.bias for op in mixer.linears if op.name != "attention_out"]
    others = [op.bias for op in mixer.linears if op.name == "attention_out"]
    others += [op.bias for k in kinds for op in (k.mlp, *((k.moe.router, k.moe.expert) if k.moe else ())) if op]
    if all(inputs) and all(others):
        return args
    args.append("--disable-bias-linear")
    if any(others) or any(inputs) != all(inputs):
        raise InputError(f"layer kind {kinds[0].name!r}: Megatron's pretrain_gpt.py cannot express biases on some of "
                         "the projections other than on queries, keys and values")  # fmt: skip
    return [*args, "--add-qkv-bias"] if all(inputs) else args


def learned_positions(model: ModelSpec) -> int | None:
    """Rows of the table of learned positions, None when the model has none (rotary positions)."""
    return next((e.parameters // model.hidden_size for e in model.embedding_extras if "position" in e.name), None)


def _embedding(model: ModelSpec, sequence: int) -> Args:
    rows = learned_positions(model)
    kind, most = ("rope", max(model.max_sequence or 0, sequence)) if rows is None else ("learned_absolute", rows)
    args = ["--max-position-embeddings", str(most), "--position-embedding-type", kind]
    return args if model.tied_embeddings else [*args, "--untie-embeddings-and-output-weights"]


def _facts(model: ModelSpec, kinds: tuple[LayerKind, ...], family: Family, notes: list[str]) -> Args:
    facts = ["--norm-epsilon", epsilon_of(model, family)]
    if learned_positions(model) is None:
        facts += ["--rotary-base", str(int(base_of(model, family))), "--rotary-percent", f"{family.rotary_percent:g}"]
        base = "positions" if model.rotary_base is not None else f"base {family.rotary_base}"
        notes.append(f"rotary {base} without scaling (the model description does not carry it)")
        facts += ["--rope-type", "rope"] if is_mla(kinds[0]) else []
    if model.norm_epsilon is None:
        notes.append(f"norm epsilon {family.norm_epsilon} (not carried by the model description)")
    notes += _activation_notes(model, kinds, family)
    moe = next((k.moe for k in kinds if k.moe), None)
    return facts + (_router(moe, family, notes) if moe else [])


def _activation_notes(model: ModelSpec, kinds: tuple[LayerKind, ...], family: Family) -> list[str]:
    mlp = _first_mlp(kinds)
    gated = mlp is not None and mlp.gated
    if gated and family.clamped_gate:
        # Such files call the activation silu; the clamp and the offset stand in the class.
        return ["activation clamped GELU gate (not carried by the model description)"]
    if gated and model.activation == "quick_gelu":
        return ["activation quick GELU gate without offset and clamp (not carried by the model description)"]
    if model.activation is not None:
        return []
    name = "SiLU" if gated else "squared ReLU" if family.squared_relu else "GELU"
    return [f"activation {name} (not carried by the model description)"]


def _router(moe: Moe, family: Family, notes: list[str]) -> Args:
    notes.append(f"router {family.router}, load balancing by an auxiliary loss (not carried by the model description)")
    if family.router == "sigmoid":
        args = ["--moe-router-score-function", "sigmoid", "--moe-router-enable-expert-bias"]
        args += ["--moe-router-load-balancing-type", "seq_aux_loss", "--moe-aux-loss-coeff", "1e-4"]
    else:
        # A softmax over one chosen expert would always be 1, so Megatron wants it over all of them.
        args = ["--moe-router-pre-softmax"] if family.router == "pre_softmax" or moe.top_k == 1 else []
        args += ["--moe-router-load-balancing-type", "aux_loss", "--moe-aux-loss-coeff", "1e-3"]
    scale = family.router_scale
    return args if scale is None else [*args, "--moe-router-topk-scaling-factor", f"{scale:g}"]
