"""Host lists: the forms that Slurm's manual describes, counted by hand, and what any list must satisfy."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.hardware_profiles.errors import InputError
from shardwise.hardware_profiles.hostlist import compress, expand, natural


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("gpu1", "gpu1"),
        ("gpu[1-3,5]", "gpu1 gpu2 gpu3 gpu5"),
        ("n[08-11]", "n08 n09 n10 n11"),
        ("n[01-3]", "n01 n02 n03"),
        ("a[1-2]b[3-4]", "a1b3 a1b4 a2b3 a2b4"),
        ("rack[0-1]-node[01-02]", "rack0-node01 rack0-node02 rack1-node01 rack1-node02"),
        ("sw.1.[9-10]", "sw.1.9 sw.1.10"),
        ("n[1-2]-ib", "n1-ib n2-ib"),
        ("b[1-2],login,,d[7]", "b1 b2 login d7"),
        ("x[2-3],x[2]", "x2 x3 x2"),
        ("n[098-101]", "n098 n099 n100 n101"),
        ("", ""),
        (",", ""),
    ],
)
def test_expand(text, hosts):
    assert expand(text) == tuple(hosts.split())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("n[5-3]", "range 5-3 runs backwards"),
        ("n[1-2", "never closed"),
        ("n1-2]", "do not match at character 5"),
        ("n[[1]]", "do not match"),
        ("n[a-c]", "expected numbers"),
        ("n[1-]", "expected numbers"),
        ("n[]", "expected numbers"),
        ("n 1", "without spaces"),
        ("Nodes=n1", "without spaces"),
    ],
)
def test_what_is_no_list_is_refused(text, said):
    with pytest.raises(InputError, match="host list") as error:
        expand(text)
    assert said in str(error.value)


@pytest.mark.parametrize("text", ["n[1-999999999]", "a[1-4000]b[1-4000]", "n[1-200000],m[1-200000]"])
def test_a_list_that_no_cluster_has_is_refused_before_it_is_made(text):
    start = time.process_time()
    with pytest.raises(InputError, match="more than 262144 hosts"):
        expand(text)
    assert time.process_time() - start < 1.0


@pytest.mark.parametrize(
    ("hosts", "text"),
    [
        ("n1 n2 n3", "n[1-3]"),
        ("n08 n09 n10 n12", "n[08-10,12]"),
        ("n9 n10", "n[9-10]"),
        ("n09 n10 n011", "n[09-10,011]"),
        ("n3 n1 n2", "n[3,1-2]"),
        ("login n1", "login,n1"),
        ("n n1", "n,n1"),
        ("a1b1 a1b2 a2b1", "a1b[1-2],a2b1"),
    ],
)
def test_compress(hosts, text):
    assert compress(hosts.split()) == text


PREFIXES = ("n", "n0", "gpu-", "a1b", "rack.2-", "")
NUMBERS = st.integers(0, 300).flatmap(lambda n: st.sampled_from([str(n), f"{n:03}", f"{n:02}", f"{n}x", "z"]))
NAMES = st.tuples(st.sampled_from(PREFIXES), NUMBERS).map("".join)


@given(st.lists(NAMES, max_size=12))
def test_compressing_and_expanding_gives_the_same_hosts(hosts):
    assert expand(compress(hosts)) == tuple(hosts)


@given(st.text(max_size=20))
def test_any_text_is_expanded_or_refused(text):
    try:
        hosts = expand(text)
    except InputError:
        return
    assert expand(compress(hosts)) == hosts


def test_natural_order_counts():
    assert sorted(["n10", "n2", "m3", "n2b1", "n2a"], key=natural) == ["m3", "n2", "n2a", "n2b1", "n10"]
