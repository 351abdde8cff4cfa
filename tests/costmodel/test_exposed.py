"""What a step waits for, pool by pool: on the ideal cluster it is what the step's own parts say."""

import pytest

import shardwise
from shardwise.costmodel.exposed import Collective, Pool

W = shardwise.Workload
CASES = [
    ("llama-3.1-70b", "dgx-h100", 512, W(1024, 8192), "tp=8,pp=4,mbs=1"),
    ("llama-3.1-70b", "dgx-h100", 512, W(1024, 8192), "tp=8,pp=4,vpp=4,mbs=1,dp_overlap=off"),
    ("llama-3.1-8b", "dgx-a100", 64, W(128, 32768), "tp=2,cp=8,mbs=1"),
    ("llama-3.1-8b", "dgx-h100", 64, W(128, 8192), "tp=4,cp=2,cp_comm=a2a,mbs=1"),
    ("llama-3.1-8b", "dgx-h100", 64, W(128, 8192), "tp=2,zero=3,mbs=1"),
    ("mixtral-8x7b", "dgx-h100", 128, W(256, 4096), "tp=2,pp=4,ep=8,mbs=1"),
    ("deepseek-v3", "dgx-h100", 512, W(2048, 4096), "pp=16,ep=32,mbs=1,ep_overlap=on"),
    ("gpt-2-xl", "dgx-h100", 64, W(128, 1024), "pp=4,mbs=1,zero=0"),
]


def on_the_ideal_cluster(estimate):
    """Exposed seconds of each parallelism.

    A ring is as slow as its slowest hop; of a pipeline's boundaries only some leave the innermost domain.
    """
    cluster, out = estimate.problem.cluster, {}
    for pool in estimate.pools:
        total = 0.0
        for c in pool.collectives:
            far = float(cluster.collective_time_s(c.collective, c.tensor_bytes, c.group_size, c.stride))
            if pool.parallelism == "pp" and c.collective == "p2p":
                near = float(cluster.collective_time_s("p2p", c.tensor_bytes, 2, c.stride))
                crossing = min(c.group_size - 1, -(-c.group_size * c.stride // cluster.domains[0]) - 1)
                far = near + (far - near) * crossing / (c.group_size - 1)
            total += c.count * far
        out[pool.parallelism] = out.get(pool.parallelism, 0.0) + float(pool.exposed_s(total))
    return out


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}-{c[4]}")
def test_pools_sum_to_the_communication_of_the_step(case):
    model, cluster, gpus, workload, strategy = case
    estimate = shardwise.estimate(model, cluster, workload, f"{strategy},recompute=none", num_gpus=gpus)
    found, parts = on_the_ideal_cluster(estimate), estimate.time_parts_s
    assert found.get("tp", 0.0) == pytest.approx(parts["tp_comm"])
    assert found.get("cp", 0.0) == pytest.approx(parts["cp_comm"])
    assert found.get("ep", 0.0) + found.get("etp", 0.0) == pytest.approx(parts["ep_comm"])
    assert found.get("pp", 0.0) == pytest.approx(parts["pp_comm"])
    assert found.get("dp", 0.0) + found.get("embedding", 0.0) == pytest.approx(parts["dp_comm"])


def test_full_recomputation_repeats_what_forward_passes_send():
    def tensor_parallel(recompute):
        settings = f"tp=8,pp=4,mbs=1,recompute={recompute}"
        estimate = shardwise.estimate("llama-3.1-70b", "dgx-h100", W(1024, 8192), settings, num_gpus=512)
        return on_the_ideal_cluster(estimate)["tp"], estimate.time_parts_s

    plain, parts = tensor_parallel("none")
    full, _ = tensor_parallel("full")
    assert plain == pytest.approx(parts["tp_comm"])
    assert plain < full < 2.0 * plain


def test_what_hides_is_bounded_by_share_and_room():
    pool = Pool("dp", (), 2.0, 0.5, 3.0, 0.2)
    assert pool.exposed_s(4.0) == pytest.approx(2.0 * (4.0 - 0.8 * 2.0))  # half hides
    assert pool.exposed_s(10.0) == pytest.approx(2.0 * (10.0 - 0.8 * 3.0))  # no more than the room


@pytest.mark.parametrize(
    ("collective", "bytes_"),
    [("all_reduce", 2 * 7 / 8 * 80), ("all_gather", 70.0), ("reduce_scatter", 70.0), ("p2p", 80.0)],
)
def test_bytes_once_round(collective, bytes_):
    """Thakur et al., IJHPCA 2005, section 4: (n-1)/n of the tensor a pass of a ring."""
    assert Collective(collective, 80.0, 8, 1, 1.0).bytes_once_round == pytest.approx(bytes_)
