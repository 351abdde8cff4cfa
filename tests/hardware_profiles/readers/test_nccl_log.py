"""Logs in every layout that is around give the rows that were printed, and what is broken is refused with its line."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.hardware_profiles.errors import InputError
from shardwise.hardware_profiles.readers.nccl_log import kind_of_name, kind_of_program, read_nccl_log
from shardwise.hardware_profiles.readers.nccl_ranks import Said, settle
from shardwise.hardware_profiles.readers.nccl_rows import read_header

from . import printed

SIZES = tuple(1 << p for p in range(10, 33, 2))


def read(tmp_path, lines, name="log.txt"):
    path = tmp_path / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return read_nccl_log(path)


def one(tmp_path, lines):
    tables = read(tmp_path, lines)
    assert len(tables) == 1
    return tables[0]


def assert_printed(table, sizes=SIZES):
    """Times of the rows that ``printed.log`` writes, within the last printed digit."""
    assert [p.nbytes for p in table.points] == list(sizes)
    for point in table.points:
        for seconds in point.samples_s:
            assert seconds == pytest.approx(printed.seconds_of(point.nbytes), rel=1e-3, abs=6e-9)
        assert len(point.samples_s) == 2


@pytest.mark.parametrize("op", sorted(printed.FACTORS))
@pytest.mark.parametrize(("layout", "check"), [("new", "#wrong"), ("old", "error"), ("bare", "error")])
def test_column_sets(tmp_path, op, layout, check):
    table = one(tmp_path, printed.log(op, layout=layout, check=check, sizes=SIZES))
    assert_printed(table)
    assert table.kind == kind_of_program(f"{op}_perf")
    assert table.complete and len(table.devices) == 8


PREFIXES = {
    "srun label": lambda line: f"0: {line}",
    "wide srun label": lambda line: f"00: {line}",
    "mpirun tag": lambda line: f"[1,0]<stdout>:{line}",
    "prterun tag": lambda line: f"[prterun-node0-4711@1,0]<stdout>: {line}",
    "horovodrun tag": lambda line: f"[0]<stdout>:{line}",
    "timestamp and tag": lambda line: f"Thu May  7 10:39:20 2020[1,0]<stdout>:{line}",
    "kubectl timestamps": lambda line: f"2026-05-07T10:39:20.123456789Z {line}",
    "compose": lambda line: f"launcher-0  | {line}",
    "stern": lambda line: f"nccl-test-launcher-x7z nccl {line}",
    "indented": lambda line: f"    {line}",
    "tabbed": lambda line: f"\t{line}",
    "quoted": lambda line: f"> {line}",
    "listed": lambda line: f"- {line}",
    "coloured": lambda line: f"\x1b[0m{line}\x1b[32m",
    "carriage return": lambda line: f"{line}\r",
    "rank label inside": lambda line: line.replace("float", "[0]float[0] ").replace("sum ", "sum[0] "),
    "collapsed blanks": lambda line: " ".join(line.split()),
}


@pytest.mark.parametrize("prefix", sorted(PREFIXES))
def test_what_launchers_and_pages_put_around_lines(tmp_path, prefix):
    table = one(tmp_path, [PREFIXES[prefix](line) for line in printed.log(sizes=SIZES)])
    assert_printed(table)
    assert len(table.devices) == 8


def test_no_header_and_no_footer(tmp_path):
    for layout in ("new", "old", "bare"):
        table = one(tmp_path, printed.rows(layout=layout, sizes=SIZES))
        assert_printed(table)
        assert not table.complete and "no footer" in table.notes[0]


@given(st.lists(st.sampled_from(range(100)), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_warnings_between_any_lines_change_nothing(tmp_path_factory, places, random):
    noise = (
        "node0:29250] 15 more processes have sent help message help-btl-vader.txt / xpmem-make-failed",
        "node1:4711:4720 [3] NCCL INFO Channel 00/0 : 3[3] -> 4[4] [send] via NET/IB/3/GDRDMA",
        "[1,1]<stdout>:node1:21:21 [0] NCCL INFO comm 0x1 rank 1 nranks 8 cudaDev 0 busId f5000 - Destroy COMPLETE",
        "WARNING: Could not generate an xpmem segment id for this process'",
        "slurmstepd: error: x11: unable to read DISPLAY value", "...", "",
    )  # fmt: skip
    lines = printed.log(sizes=SIZES)
    for place in places:
        lines.insert(place % len(lines), random.choice(noise))
    assert_printed(one(tmp_path_factory.mktemp("noise"), lines))


def test_several_runs_in_one_file(tmp_path):
    lines = [*printed.log(ranks=4, sizes=SIZES), "$ mpirun -np 16 ./all_gather_perf -b 8"]
    lines += printed.log("all_gather", ranks=16, named=False, sizes=SIZES)
    lines += printed.log("alltoall", ranks=8, sizes=SIZES)
    tables = read(tmp_path, lines)
    assert [(t.kind, len(t.devices), t.rows) for t in tables] == [
        ("all_reduce", 4, len(SIZES)),
        ("all_gather", 16, len(SIZES)),
        ("all_to_all", 8, len(SIZES)),
    ]


def test_tables_without_banners_are_told_apart_by_their_headers(tmp_path):
    lines = [*printed.header(), *printed.rows(sizes=SIZES[:3]), *printed.header(), *printed.rows(sizes=SIZES[3:5])]
    assert [t.rows for t in read(tmp_path, lines)] == [3, 2]


def test_rows_of_no_bytes_are_counted_apart(tmp_path):
    empty = (
        "           0             0     float     sum      -1     0.30    0.00   0.00    0   0.26   0.00   0.00   N/A"
    )
    table = one(tmp_path, [*printed.header(), empty, empty, *printed.rows(sizes=SIZES), *printed.footer()])
    assert (table.empty_rows, table.rows) == (2, len(SIZES) + 2)
    assert_printed(table)


def test_an_empty_reduction_cell_under_a_header_that_names_it(tmp_path):
    table = one(tmp_path, [*printed.header("old", "error"), *printed.rows("alltoall", layout="bare", sizes=SIZES)])
    assert_printed(table)


def test_checks_that_were_not_made(tmp_path):
    assert_printed(one(tmp_path, printed.log(check="error", layout="old", sizes=SIZES)))
    lines = [*printed.header(), *printed.rows(sizes=SIZES, check="N/A")]
    assert_printed(one(tmp_path, lines))


def test_nccl_1_prints_milliseconds_without_saying_so(tmp_path):
    lines = [
        "# Using devices",
        *(f"#   Device  {i} ->  {i} [0x0{i}] GeForce GTX TITAN X" for i in range(4)),
        "#                                                 out-of-place                    in-place",
        "#      bytes             N    type      op     time  algbw  busbw      res     time  algbw  busbw      res",
        "#   10000000      10000000    char     sum    2.000   5.00   7.50    0e+00    2.500   4.00   6.00    0e+00",
        "    20000000       5000000     int    prod    4.000   5.00   7.50    0e+00    5.000   4.00   6.00    0e+00",
    ]
    table = one(tmp_path, lines)
    assert [s for p in table.points for s in p.samples_s] == pytest.approx([2e-3, 2.5e-3, 4e-3, 5e-3])
    assert len(table.devices) == 4


def test_per_iteration_columns_and_timestamps(tmp_path):
    names, units = "time algbw busbw #wrong i_min i_max i_p99 i_cv%", "(us) (GB/s) (GB/s) (us) (us) (us) (%)"
    lines = [
        "# Per-Iteration Report: CUDA event timing; i_* uses max over process rows",
        f"# size count type redop root {names} {names} timestamp",
        f"# (B) (elements) {units} {units} %Y-%m-%d %H:%M:%S",
        "1000000 250000 float sum -1 10.00 100.00 175.00 0 9.1 11.0 10.9 3.2 20.00 50.00 87.50 0 19 21 21 1.0"
        " 2026-05-01 10:00:01",
    ]
    table = one(tmp_path, lines)
    assert table.points[0].samples_s == pytest.approx((10e-6, 20e-6))
    assert not any("missing" in note for note in table.notes)


def test_nccom_test(tmp_path):
    lines = [
        "$ nccom-test -r 32 -N 2 allg -b 512kb -e 512mb",
        "    size(B)    count(elems)    type    time:avg(us)    algbw(GB/s)    busbw(GB/s)",
        "     524288          131072    fp32           24.15          21.71          21.03",
        "   33554432        33554432    uint8            768          40.69          39.42",
        "Avg bus bandwidth:      30.2GB/s",
    ]
    table = one(tmp_path, lines)
    assert (table.kind, table.ranks_said, table.nodes_said) == ("all_gather", 32, 2)
    assert [s for p in table.points for s in p.samples_s] == pytest.approx([24.15e-6, 768e-6])


def test_csv_of_the_same_columns(tmp_path):
    table = one(tmp_path, [",".join(line.split()) for line in printed.rows(sizes=SIZES)])
    assert_printed(table)


def test_a_json_report(tmp_path):
    report = {
        "version": 2,
        "args": ["/opt/nccl-tests/build/reduce_scatter_perf", "-J", "out.json"],
        "nccl_version": 22903,
        "config": {
            "nthreads": 1,
            "ngpus": 1,
            "devices": [
                {"rank": r, "group": 0, "pid": 1, "hostname": f"node{r // 2}", "device": r % 2, "device_info": "H100"}
                for r in range(4)
            ],
        },
        "results": [
            {"size": 4096, "count": 256, "type": "float", "redop": "sum", "root": "    -1",
             "out_of_place": {"time": 12.5, "alg_bw": 0.3, "bus_bw": 0.2, "nwrong": 0.0},
             "in_place": {"time": 12.25, "alg_bw": 0.3, "bus_bw": 0.2, "nwrong": None}},
        ],
    }  # fmt: skip
    table = one(tmp_path, [json.dumps(report)])
    assert (table.kind, len(table.devices)) == ("reduce_scatter", 4)
    assert table.points[0].samples_s == pytest.approx((12.5e-6, 12.25e-6))
    report["results"][0]["out_of_place"]["time"] = report["results"][0]["in_place"]["time"] = 0
    with pytest.raises(InputError, match=r"results\.0"):
        read(tmp_path, [json.dumps(report)])


# --- what is broken -----------------------------------------------------------------------------------------------


def refused(tmp_path, lines, *words):
    with pytest.raises(InputError) as caught:
        read(tmp_path, lines)
    message = str(caught.value)
    assert "\n" not in message and "log.txt" in message
    for word in words:
        assert word in message, message


def test_masked_digits(tmp_path):
    row = "   268435456     4194304   float   none    -1   XXXXX  XXX.XX  XXX.XX   N/A   XXXXX  XXX.XX  XXX.XX   0"
    refused(tmp_path, [*printed.header(), *printed.rows(sizes=SIZES[:1]), row], "line 5", "masked")
    row = "   XXXXXXXXX     XXXXXXX   float    sum    -1    12.5    1.00    1.75     0    12.5    1.00    1.75   0"
    refused(tmp_path, [*printed.header(), *printed.rows(sizes=SIZES[:1]), row, "#"], "line 5", "masked")


def test_values_left_out_of_a_row(tmp_path):
    row = "     8388608     2097152    float    sum     -1     ...    ...    ...     0     ...    ...    ...   0"
    refused(tmp_path, [*printed.header(), row, *printed.rows(sizes=SIZES)], "line 4")


def test_one_placement_only(tmp_path):
    lines = [
        "# size count type redop root time algbw busbw #wrong",
        "1000000 250000 float sum -1 10.00 100.00 175.00 0",
    ]
    for kept in (lines, lines[1:]):
        assert one(tmp_path, kept).points[0].samples_s == pytest.approx((10e-6,))


def test_a_row_cut_inside_the_table(tmp_path):
    rows = printed.rows(sizes=SIZES)
    rows[3] = rows[3][:58]
    refused(tmp_path, [*printed.header(), *rows], "line 7", "cut")


def test_a_row_cut_by_the_end_of_the_file_is_left_out(tmp_path):
    rows = printed.rows(sizes=SIZES)
    rows[-1] = rows[-1][:58]
    table = one(tmp_path, [*printed.header(), *rows])
    assert table.rows == len(SIZES) - 1 and any(f"line {len(rows) + 3}" in note for note in table.notes)


def test_a_row_broken_by_a_flush_is_joined(tmp_path):
    rows = printed.rows(sizes=SIZES)
    rows[3:4] = [rows[3][:54], rows[3][54:]]
    assert_printed(one(tmp_path, [*printed.header(), *rows]))


def test_times_in_another_unit_than_the_header_says(tmp_path):
    refused(tmp_path, [*printed.header(unit="ms"), *printed.rows(sizes=SIZES)], "line 4", "unit")


def test_a_digit_lost_from_a_time(tmp_path):
    rows = printed.rows(sizes=SIZES)
    rows[5] = rows[5].replace(" 1", "  ", 3)
    refused(tmp_path, [*printed.header(), *rows], "line 9")


@pytest.mark.parametrize("text", ["", "   \n", "# Using devices\n", "Segmentation fault\n", '{"results": []}', "{"])
def test_a_file_without_rows(tmp_path, text):
    path = tmp_path / "log.txt"
    path.write_text(text)
    with pytest.raises(InputError, match=r"log\.txt"):
        read_nccl_log(path)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match=r"none\.txt.*cannot be read"):
        read_nccl_log(tmp_path / "none.txt")


@pytest.mark.parametrize(
    ("name", "kind"),
    [("h100_2n_allreduce", "all_reduce"), ("all-gather.8", "all_gather"), ("redsct", "reduce_scatter"),
     ("nccl_alltoall", "all_to_all"), ("reducer", None), ("sendrecv_8g", "p2p")],
)  # fmt: skip
def test_names_of_files_that_speak(name, kind):
    assert kind_of_name(name) == kind


def test_a_line_of_columns_whose_type_is_torn_is_none():
    torn = "#       size         count.type   redop    root     time   algbw   busbw  #wrong"
    assert read_header(torn) is None and read_header(torn.replace(".", " ")) is not None


@settings(max_examples=150, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 6))
def test_a_damaged_log_is_read_or_refused_never_worse(tmp_path_factory, random, damage):
    text = list("\n".join(printed.log(ranks=4, sizes=SIZES[:4])))
    for _ in range(damage):
        at = random.randrange(len(text))
        text[at : at + random.randrange(30)] = random.choice(
            ["", "X", "\n", "9", ".", "-", "e", "[0]", "nan", "\x00", "|"]
        )
    path = tmp_path_factory.mktemp("damaged") / "log.txt"
    path.write_text("".join(text))
    try:
        tables = read_nccl_log(path)
    except InputError as error:
        assert str(error).startswith(str(path)) and "\n" not in str(error)
        return
    for table in tables:
        assert all(s > 0.0 for point in table.points for s in point.samples_s)
        with contextlib.suppress(InputError):
            settle(table, Said(), 8, 8)
