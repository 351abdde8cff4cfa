"""Topology files: the grammars of Slurm's manual pages on files of our own, and a message with line for every fault."""

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.hardware_profiles.errors import InputError
from shardwise.hardware_profiles.load_topology import load_topology, parse_topology


def levels(topology, nodes=None):
    """Domains of each level, as sets of nodes."""
    names = topology.nodes if nodes is None else nodes
    out = []
    for numbers in topology.domains(names):
        parts = {}
        for node, number in zip(names, numbers, strict=True):
            parts.setdefault(number, []).append(node)
        out.append(sorted(" ".join(part) for part in parts.values()))
    return out


TREE = """\
# two leaves under one spine
SwitchName=leafA Nodes=c[1-2]   LinkSpeed=400
switchname=leafB	NODES=c[3-5] \\
    linkspeed=400

SwitchName=spine Switches=leafA,leafB
"""


def test_a_tree():
    topology = parse_topology(TREE, "t.conf")
    assert (topology.kind, topology.faults) == ("tree", ())
    assert [(s.name, s.line, s.level, s.link_speed) for s in topology.switches] == [
        ("leafA", 2, 0, 400.0),
        ("leafB", 3, 0, 400.0),
        ("spine", 6, 1, None),
    ]
    assert levels(topology) == [["c1 c2", "c3 c4 c5"], ["c1 c2 c3 c4 c5"]]
    assert [s.name for s in topology.roots] == ["spine"]


def test_parents_may_stand_first_and_levels_may_differ():
    text = "SwitchName=top Switches=m,l3\nSwitchName=m Switches=l[1-2]\n" + "\n".join(
        f"SwitchName=l{i} Nodes=n{i}" for i in (1, 2, 3)
    )
    topology = parse_topology(text, "t.conf")
    assert levels(topology) == [["n1", "n2", "n3"], ["n1 n2", "n3"], ["n1 n2 n3"]]


def test_parallel_spines_are_one_level():
    """A fat tree: every leaf under every spine, twice over with a core above."""
    text = "\n".join(f"SwitchName=l{i} Nodes=n[{2 * i}-{2 * i + 1}]" for i in range(4))
    text += "\n" + "\n".join(f"SwitchName=a{i} Switches=l[0-1]" for i in range(2))
    text += "\n" + "\n".join(f"SwitchName=b{i} Switches=l[2-3]" for i in range(2))
    text += "\n" + "\n".join(f"SwitchName=c{i} Switches=a[0-1],b[0-1]" for i in range(4))
    topology = parse_topology(text, "fat.conf")
    assert topology.faults == ()
    assert levels(topology) == [
        ["n0 n1", "n2 n3", "n4 n5", "n6 n7"],
        ["n0 n1 n2 n3", "n4 n5 n6 n7"],
        ["n0 n1 n2 n3 n4 n5 n6 n7"],
    ]


def test_several_roots_are_a_fault_and_joined_by_a_level_outside():
    topology = parse_topology("SwitchName=x Nodes=n[1-2]\nSwitchName=y Nodes=n[3-4]\n", "two.conf")
    (fault,) = topology.faults
    assert str(fault).startswith("two.conf: no switch reaches all 4 nodes ('x' with 2, 'y' with 2)")
    assert levels(topology) == [["n1 n2", "n3 n4"], ["n1 n2 n3 n4"]]


def test_a_node_listed_twice_is_where_it_stands_first():
    topology = parse_topology("SwitchName=x Nodes=n[1-2]\nSwitchName=y Nodes=n[2-3]\nSwitchName=r Switches=x,y", "t")
    assert [str(f) for f in topology.faults] == ["t:2: node 'n2' is under 'x' (line 1) already; taken to be there"]
    assert levels(topology)[0] == ["n1 n2", "n3"]


def test_a_node_listed_nowhere_is_alone():
    topology = parse_topology(TREE, "t.conf")
    found = levels(topology, ("c1", "c3", "lost1", "lost2"))
    assert found == [["c1", "c3", "lost1", "lost2"], ["c1 c3", "lost1", "lost2"], ["c1 c3 lost1 lost2"]]


def test_uplinks_count_their_parents():
    text = "SwitchName=l0 Nodes=n0 LinkSpeed=900\nSwitchName=l1 Nodes=n1\n"
    text += "SwitchName=s0 Switches=l[0-1] LinkSpeed=1800\nSwitchName=s1 Switches=l[0-1]"
    assert parse_topology(text, "t").speeds() == {"l0": 1800.0}


BLOCKS = "BlockName=b1 Nodes=n[01-18]\nBlockName=b2 Nodes=n[19-36]\nBlockName=b3 Nodes=n[37-54]\nBlockSizes={}\n"


def test_blocks_and_their_unions():
    topology = parse_topology(BLOCKS.format("16,32"), "b.conf")
    assert topology.kind == "block" and topology.faults == ()
    assert [len(level) for level in levels(topology)] == [3, 2, 1]
    assert [len(part.split()) for part in levels(topology)[1]] == [36, 18]


def test_a_block_smaller_than_planned_is_a_fault():
    topology = parse_topology("BlockName=b1 Nodes=n[1-16]\nBlockSizes=18", "b.conf")
    assert [str(f) for f in topology.faults] == ["b.conf:1: block 'b1' has 16 nodes, its planned size is 18"]


def test_rings():
    topology = parse_topology("RingName=r0 Nodes=n[1-4]\nRingName=r1 Nodes=n[5-8]", "r.conf")
    assert topology.kind == "ring"
    assert levels(topology)[0] == ["n1 n2 n3 n4", "n5 n6 n7 n8"]


PRINTED = """\
SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[1-4]
SwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=n[5-8]
SwitchName=spine Level=1 LinkSpeed=1 Nodes=n[1-8] Switches=leaf[1-2]
"""


def test_what_scontrol_prints_repeats_nodes_upwards():
    topology = parse_topology(PRINTED, "show.txt")
    assert topology.faults == ()
    assert levels(topology) == [["n1 n2 n3 n4", "n5 n6 n7 n8"], ["n1 n2 n3 n4 n5 n6 n7 n8"]]


def test_what_scontrol_prints_may_lack_lines():
    topology = parse_topology(PRINTED.replace(PRINTED.splitlines()[1] + "\n", ""), "show.txt")
    said = [str(fault) for fault in topology.faults]
    assert said[0] == "show.txt:2: switch 'spine': no line for its switches leaf2; left out"
    assert said[1].startswith("show.txt:2: 4 nodes of 'spine' are under none of its switches")
    assert levels(topology) == [["n1 n2 n3 n4", "n5 n6 n7 n8"], ["n1 n2 n3 n4 n5 n6 n7 n8"]]


def test_printed_blocks_carry_their_size():
    text = "BlockName=b1 BlockIndex=0 Nodes=n[1-18] BlockSize=18\nBlockName=b2 BlockIndex=1 Nodes=n[19-36] BlockSize=18"
    topology = parse_topology(text, "show.txt")
    assert (topology.block_sizes, topology.faults) == ((18,), ())
    assert [len(level) for level in levels(topology)] == [2, 1]


YAML = """\
---
- topology: fabric
  cluster_default: true
  tree:
    switches:
      - switch: root
        children: l[1-2]
      - switch: l1
        nodes: n[1-2]
      - switch: l2
        nodes: n[3-4]
- topology: racks
  block:
    block_sizes: [2, 4]
    blocks:
      - block: k1
        nodes: n[1-2]
      - block: k2
        nodes: n[3-4]
- topology: plain
  flat: true
- topology: cube
  torus3d:
    toruses: []
- topology: loop
  ring:
    rings:
      - ring: r1
        nodes: n[1-4]
"""


@pytest.mark.parametrize(
    ("name", "kind", "domains"),
    [(None, "tree", [2, 1]), ("racks", "block", [2, 1]), ("plain", "flat", [1]), ("loop", "ring", [1])],
)
def test_a_file_of_several_topologies(name, kind, domains):
    topology = parse_topology(YAML, "t.yaml", name)
    assert topology.kind == kind
    assert [max(level) + 1 for level in topology.domains(("n1", "n2", "n3", "n4"))] == domains
    assert len(topology.others) == 4


LIST = """\
node   switch  spine
n1     tor1    s1
n2     tor1    s1
n3     tor2    s1
n[4-5] tor3    s2
"""


def test_a_list_of_nodes_and_switches():
    topology = parse_topology(LIST, "nodes.txt")
    assert levels(topology)[:2] == [["n1 n2", "n3", "n4 n5"], ["n1 n2 n3", "n4 n5"]]
    assert "no switch reaches all 5 nodes" in str(topology.faults[0])
    csv = "n1,tor1\nn[2,3],tor2\n"
    assert levels(parse_topology(csv, "nodes.csv"))[0] == ["n1", "n2 n3"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("SwitchName=a Nodes=n1\nSwitchName=a Nodes=n2", "f:2: switch 'a' stands on line 1 already"),
        ("SwitchName=a Switches=b", "f:1: switch 'a' names switch 'b', which no line defines"),
        ("SwitchName=a Switches=b\nSwitchName=b Switches=a", "f:2: switch 'b' names 'a', which is above it: a loop"),
        ("SwitchName=a Switches=a", "f:1: switch 'a' names 'a', which is above it: a loop"),
        ("SwitchName=a Nodes=n1 Switches=b", "f:1: switch 'a' has both Nodes and Switches"),
        ("SwitchName=a", "f:1: switch 'a' has neither Nodes nor Switches"),
        ("SwitchName=a Nodes=n[3-1]", "f:1: host list: 'n[3-1]': range 3-1 runs backwards"),
        ("\n# x\nSwitchName=a Nodes=n[1-999999999]", "f:3: host list 'n[1-999999999]': more than 262144 hosts"),
        ("SwitchName=a Node=n1", "f:1: unknown key 'node'; did you mean Nodes?"),
        ("SwitchName=a Nodes=n1 nodes=n2", "f:1: key 'nodes' twice on the line"),
        ("SwichName=a Nodes=n1", "f:1: 'swichname': expected a line with SwitchName"),
        ("SwitchName=a Nodes=n1 oops", "f:1: 'oops': expected Key=value"),
        ("SwitchName=a Nodes=n1\nBlockName=b Nodes=n2", "f:2: a block line in a file of kind tree"),
        ("SwitchName=a Nodes=n1 LinkSpeed=fast", "f:1: LinkSpeed = 'fast': expected a whole number"),
        ("SwitchName= Nodes=n1", "f:1: key 'SwitchName' has no value before 'Nodes=n1'"),
        ("Nodes=n1 SwitchName=", "f:1: SwitchName is empty"),
        ("Include other.conf\nSwitchName=a Nodes=n1", "f:1: Include is not followed"),
        ("BlockName=a Nodes=n[1-4]\nBlockSizes=4,12", "f:2: block size 12: expected a power of two times the first, 4"),
        ("BlockName=a Nodes=n[1-4]\nBlockSizes=8,4", "f:2: block size 4: expected a power of two"),
        ("BlockName=a Nodes=n[1-4]\nBlockSizes=x", "f:2: BlockSizes = 'x': expected a whole number"),
        ("BlockName=a Nodes=n1\nBlockSizes=1\nBlockSizes=2", "f:3: BlockSizes stands on line 2 already"),
        ("BlockSizes=4", "f: no block in it"),
        ("SwitchName=a Nodes=", "f:1: switch 'a' has neither"),
        ("RingName=a Nodes=", "f: no nodes in it"),
        ("\n# nothing\n", "f: is empty"),
        ("n1\n", "f:1: 'n1': expected a node and the switch it hangs on"),
        ("- topology: a\n  tree: [\n", "broken YAML"),
        ("- topology: a\n", "f:1: topology 'a' has none; expected one of tree"),
        ("- topology: a\n  flat: true\n  ring:\n    rings: []\n", "f:1: topology 'a' has ring and flat"),
        ("- topology: a\n  mesh: 1\n", "f:2: unknown key 'mesh'"),
        ("- name: a\n", "f:1: 'topology' is missing"),
        ("topology: a\n", "f:1: expected a list of topologies"),
        ("- topology: a\n  flat: true\n- topology: a\n  flat: true\n", "topology 'a' twice"),
        ("- topology: a\n  tree:\n    switches:\n      - switch: s\n", "f:4: switch 's' has neither children"),
        ("- topology: a\n  tree:\n    switches:\n      - switch: s\n        node: n1\n", "f:5: unknown key 'node'"),
        ("- topology: a\n  tree: {}\n", "'switches' is missing"),
        ("- topology: a\n  block:\n    block_sizes: big\n    blocks:\n      - {block: b, nodes: n1}\n",
         "f:3: block_sizes: 'big'"),
        ("- topology: a\n  torus3d: {}\n", "f:2: torus3d: not supported"),
    ],
)  # fmt: skip
def test_a_topology_that_cannot_be_used_is_refused_with_its_line(text, said):
    with pytest.raises(InputError) as error:
        parse_topology(text, "f")
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("SwitchName=a Nodes=n[1-2],n1", "f:1: 'a' lists a node twice"),
        ("SwitchName=a Nodes=n1\nSwitchName=b Nodes=,", "f:2: switch 'b' has no nodes"),
        ("SwitchName=a Nodes=n1\nSwitchName=r Switches=a,a", "f:2: switch 'r' names a switch twice"),
    ],
)
def test_what_can_be_lived_with_is_reported_with_its_line(text, said):
    assert said in [str(fault)[: len(said)] for fault in parse_topology(text, "f").faults]


def test_a_topology_by_another_name_is_refused():
    with pytest.raises(InputError, match="no topology 'x' in it; expected one of fabric, racks"):
        parse_topology(YAML, "t.yaml", "x")
    with pytest.raises(InputError, match=r"only a topology\.yaml holds several"):
        parse_topology(TREE, "t.conf", "x")


def test_a_file_is_read_and_a_missing_one_named(tmp_path):
    path = Path(tmp_path) / "topology.conf"
    path.write_text(TREE)
    assert load_topology(path).path == str(path)
    with pytest.raises(InputError, match=r"nothing\.conf: cannot be read"):
        load_topology(Path(tmp_path) / "nothing.conf")


def test_very_deep_trees_are_refused():
    text = "SwitchName=s0 Nodes=n1\n" + "\n".join(f"SwitchName=s{i} Switches=s{i - 1}" for i in range(1, 3000))
    with pytest.raises(InputError, match="3000 levels; expected at most 32"):
        parse_topology(text, "deep")


@given(st.text(alphabet="SwitchName=odes[]0-9,\\# \n\t:-ab{}", max_size=120))
def test_any_text_is_a_topology_or_refused_in_one_line(text):
    try:
        parse_topology(text, "f")
    except InputError as error:
        assert "\n" not in str(error)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=6), st.integers(1, 3))
def test_levels_nest(leaves, fan):
    """Nodes in one domain of a level are in one domain of every level outside it, and the last has all."""
    lines, at = [], 0
    for i, size in enumerate(leaves):
        lines.append(f"SwitchName=l{i} Nodes=n[{at}-{at + size - 1}]")
        at += size
    for i in range(0, len(leaves), fan):
        lines.append(f"SwitchName=m{i} Switches=l[{i}-{min(i + fan, len(leaves)) - 1}]")
    topology = parse_topology("\n".join(lines), "f")
    found = topology.domains(topology.nodes)
    for inner, outer in itertools.pairwise(found):
        pairs = set(zip(inner, outer, strict=True))
        assert len(pairs) == len({i for i, _ in pairs})
    assert set(found[-1]) == {0}
    assert max(found[0]) + 1 == len(leaves)
