"""GEMM and attention timings in the tables and logs that people have, with units and conventions checked."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.hardware_profiles.errors import InputError
from shardwise.hardware_profiles.readers.kernel_tables import dtype_of, kernel_of, read_attention_table, read_gemm_table
from shardwise.hardware_profiles.readers.tables import time_unit

M, N, K = 4096, 8192, 2048
FLOPS = 2.0 * M * N * K
SECONDS = 250e-6
RATE = FLOPS / SECONDS / 1e12


def gemm(tmp_path, text, name="gemm.csv"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return read_gemm_table(path, "here")


@pytest.mark.parametrize(
    "text",
    [
        f"m,n,k,dtype,time_us\n{M},{N},{K},bf16,250\n",
        f"M;N;K;Dtype;Latency (ms)\n{M};{N};{K};torch.bfloat16;0.25\n",
        f"m\tn\tk\tprecision\tseconds\n{M}\t{N}\t{K}\tbfloat16\t2.5e-4\n",
        f"| M | N | K | dtype | TFLOP/s |\n|---|---:|---|---|---|\n| {M} | {N} | {K} | bf16 | {RATE} |\n",
        f"# made by us\nm n k dtype gflops\n{M} {N} {K} bf16 {FLOPS / SECONDS / 1e9}\n",
        f'm,n,k,dtype,tflops,time_us\n"{M:,}","{N:,}","{K:,}",bf16,{FLOPS / SECONDS / 1e12},250\n',
        json.dumps({"kind": "gemm", "m": M, "n": N, "k": K, "dtype": "bf16", "time_us": 250}) + "\n",
        json.dumps([{"M": M, "N": N, "K": K, "data_type": "bfloat16", "avg_time_us": 250}]),
        f"** Dtype: torch.bfloat16\n     1 | {FLOPS / SECONDS / 1e12:.1f} TFLOPS @ {M}x{N}x{K} (MxNxK) | best: 1\n",
        f"Dtype: bfloat16\n 7 | 1.0(mean) {FLOPS / SECONDS / 1e12:.1f}(median) 999.0(max) @ {M}x{N}x{K} | best: 1\n",
    ],
)
def test_gemm_tables(tmp_path, text):
    (row,) = gemm(tmp_path, text)
    assert (row.m, row.n, row.k, row.dtype, row.groups, row.device) == (M, N, K, "bf16", 1, "here")
    assert row.time_s == pytest.approx(SECONDS, rel=1e-3)
    assert row.source == "gemm.csv"


@given(st.lists(st.tuples(*[st.integers(1, 1 << 16)] * 3, st.floats(1e-6, 10.0)), min_size=1, max_size=20))
def test_every_row_is_read(tmp_path_factory, rows):
    text = "m,n,k,dtype,seconds\n" + "".join(f"{m},{n},{k},fp16,{s!r}\n" for m, n, k, s in rows)
    read = gemm(tmp_path_factory.mktemp("g"), text)
    assert [(r.m, r.n, r.k, r.time_s) for r in read] == rows


def test_grouped_gemms_count_their_groups(tmp_path):
    (row,) = gemm(tmp_path, f"m,n,k,groups,dtype,tflops\n{M},{N},{K},8,fp8,{8 * FLOPS / SECONDS / 1e12}\n")
    assert row.groups == 8 and row.time_s == pytest.approx(SECONDS)


def test_the_best_shape_where_mamf_finder_printed_no_more(tmp_path):
    rows = gemm(
        tmp_path,
        "--dtype float8_e4m3fn\nTried  3375 shapes => the best outcomes were:\n"
        "mean:   5.0 TFLOPS @ 4096x9216x1024 (MxNxK)\nmedian: 6.0 TFLOPS @ 12288x3072x1024 (MxNxK)\n",
    )
    assert [(r.m, r.dtype) for r in rows] == [(12288, "fp8")]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("m,n,k,dtype,time\n1,2,3,bf16,4\n", ("line 2", "time_us")),
        ("m,n,k,dtype,time_us\n1,2,3,bf16\n", ("line 2", "4 cells under 5")),
        ("m,n,k,dtype,time_us\n1,2,3,int3,4\n", ("line 2", "int3")),
        ("m,n,k,dtype,time_us\n1,2,,bf16,4\n", ("line 2", "missing")),
        ("m,n,k,dtype,time_us\n1,2,3.5,bf16,4\n", ("line 2", "whole number")),
        ("m,n,k,dtype,time_us\n1,2,3,bf16,XXX\n", ("line 2", "XXX")),
        ("m,n,k,dtype,time_us\n1,2,3,bf16,0\n", ("line 2", "above 0")),
        (f"m,n,k,dtype,time_us,tflops\n{M},{N},{K},bf16,250,1\n", ("line 2", "disagree")),
        (f"m,n,k,dtype,time_us,tflops\n{M},{N},{K},bf16,250,{FLOPS / SECONDS / 2e12}\n", ("line 2", "factor of 2")),
        ('{"m": 1}\n{"m": \n', ("line 2", "JSON")),
        ("[1]", ("line 1", "object")),
        ("", ("empty",)),
        ("m,n,k,dtype,time_us\n", ("no row",)),
        ("1 | 5.0 TFLOPS @ 1x2x3 | best\n", ("line 1", "dtype")),
        ('{"kind": "attention"}\n', ("no GEMM",)),
    ],
)
def test_what_is_wrong_with_a_gemm_table(tmp_path, text, words):
    with pytest.raises(InputError) as caught:
        gemm(tmp_path, text)
    assert "gemm.csv" in str(caught.value) and "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value), str(caught.value)


# --- attention ------------------------------------------------------------------------------------------------------

FORWARD = 4.0 * 2 * 16 * 4096.0**2 * 128 / 2  # the usual count: 4 b h s^2 d, half of it when causal


def attention(tmp_path, text):
    path = tmp_path / "attention.csv"
    path.write_text(text)
    return read_attention_table(path, "here")


@pytest.mark.parametrize(
    "text",
    [
        "batch,heads,seq,head_dim,causal,dtype,kernel,direction,time_ms\n2,16,4096,128,true,bf16,fa3,forward,0.5\n",
        "b\th\ts\td\tis_causal\timpl\tmode\tms\n2\t16\t4096\t128\t1\tFAv3\tfwd\t0.5\n",
        json.dumps({"kind": "attention_fwd", "batch": 2, "heads": 16, "seq": 4096, "head_dim": 128, "causal": True,
                    "impl": "fa3", "tflops": FORWARD / 5e-4 / 1e12, "dtype": "bf16"}),
    ],
)  # fmt: skip
def test_attention_tables(tmp_path, text):
    (row,) = attention(tmp_path, text)
    assert (row.batch, row.heads, row.seq_q, row.seq_k, row.qk_dim, row.v_dim) == (2, 16, 4096, 4096, 128, 128)
    assert (row.causal, row.backward, row.kernel, row.dtype) == (True, False, "fa3", "bf16")
    assert row.time_s == pytest.approx(5e-4)


def test_the_benchmark_of_flash_attention(tmp_path):
    rows = attention(
        tmp_path,
        "### causal=True, headdim=128, batch_size=2, seqlen=4096 ###\n"
        f"Flash2 fwd: {FORWARD / 5e-4 / 1e12:.2f} TFLOPs/s, bwd: {2.5 * FORWARD / 2e-3 / 1e12:.2f} TFLOPs/s, "
        "fwd + bwd: 1.00 TFLOPs/s\nPytorch fwd: 0.00 TFLOPs/s, bwd: 0.00 TFLOPs/s, fwd + bwd: 0.00 TFLOPs/s\n",
    )
    assert [(r.kernel, r.backward, r.heads) for r in rows] == [("fa2", False, 16), ("fa2", True, 16)]
    assert [r.time_s for r in rows] == pytest.approx([5e-4, 2e-3], rel=1e-3)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("batch,heads,seq,head_dim,time_us\n1,1,1,1,5\n", ("line 2", "causal")),
        ("batch,heads,seq,causal,time_us\n1,1,1,true,5\n", ("line 2", "head_dim")),
        ("batch,heads,seq,head_dim,causal,kernel,time_us\n1,1,1,1,true,mystery,5\n", ("line 2", "kernel")),
        ("batch,heads,seq,head_dim,causal,mode,time_us\n1,1,1,1,true,fwd_bwd,5\n", ("line 2", "apart")),
        ("batch,heads,seq,head_dim,causal,time_us\n1,1,1,1,maybe,5\n", ("line 2", "maybe")),
        ("### causal=True, headdim=128 ###\nFlash2 fwd: 300.0 TFLOPs/s\n", ("line 2", "seqlen")),
    ],
)
def test_what_is_wrong_with_an_attention_table(tmp_path, text, words):
    with pytest.raises(InputError) as caught:
        attention(tmp_path, text)
    for word in words:
        assert word in str(caught.value), str(caught.value)


def test_names():
    assert [dtype_of(t) for t in ("torch.float16", "BF16", "float8_e4m3fn", "int8")] == ["fp16", "bf16", "fp8", None]
    assert [kernel_of(t) for t in ("Flash2", "FlashAttention-3", "cuDNN", "nope")] == ["fa2", "fa3", "cudnn", None]
    assert [time_unit(t) for t in ("time_us", "latency_ms", "us", "s", "time", "heads_ms")] == [
        1e-6, 1e-3, 1e-6, None, None, None,
    ]  # fmt: skip


WHOLE = (
    "m,n,k,dtype,time_us\n1,2,3,bf16,5\n4,5,6,fp8,7\n",
    '{"m": 1, "n": 2, "k": 3, "dtype": "bf16", "time_us": 5}\n',
    "### causal=True, headdim=128, batch_size=2, seqlen=4096 ###\nFlash2 fwd: 300.0 TFLOPs/s, bwd: 2.0 TFLOPs/s\n",
    "batch,heads,seq,head_dim,causal,time_us\n1,1,1,1,true,5\n",
    "Dtype: bf16\n 1 | 5.0 TFLOPS @ 1x2x3 | best\n",
)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(WHOLE), st.randoms(use_true_random=False), st.integers(1, 5))
def test_a_damaged_table_is_read_or_refused_never_worse(tmp_path_factory, text, random, damage):
    letters = list(text)
    for _ in range(damage):
        at = random.randrange(len(letters) + 1)
        letters[at : at + random.randrange(4)] = random.choice(["", "X", "\n", ".", "-", ",", "nan", "1e400", "{", '"'])
    path = tmp_path_factory.mktemp("damaged") / "table.txt"
    path.write_text("".join(letters))
    for read in (read_gemm_table, read_attention_table):
        try:
            rows = read(path, "here")
        except InputError as error:
            assert "\n" not in str(error)
        else:
            assert all(0.0 < row.time_s < float("inf") for row in rows)
