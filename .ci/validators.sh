#!/usr/bin/env bash
# Makes an environment with the real Megatron-Core and DeepSpeed, one with Megatron-Bridge, one with torchtitan, and one
# with Accelerate and nanotron, and names their interpreters in SHARDWISE_MEGATRON_PYTHON, SHARDWISE_DEEPSPEED_PYTHON,
# SHARDWISE_BRIDGE_PYTHON, SHARDWISE_TORCHTITAN_PYTHON, SHARDWISE_ACCELERATE_PYTHON and SHARDWISE_NANOTRON_PYTHON.
# It installs Slurm too. Source it.
#
# They are environments of their own: Megatron's wheels pin a Python and versions that shardwise does not need. No GPU
# and no Triton: the runners in tests/launchers/validators stand in for the kernels.

megatron_venv=${MEGATRON_VENV:-$PWD/.venvs/megatron}
# A CPU build of torch; 3.11 is the oldest Python with a wheel of everything.
megatron_python=${MEGATRON_BASE_PYTHON:-$(command -v python3.11 || command -v python3)}

if ! "$megatron_venv/bin/python" -c 'import megatron.core, torch, einops' >/dev/null 2>&1; then
  "$megatron_python" -m venv "$megatron_venv"
  "$megatron_venv/bin/pip" install --quiet --disable-pip-version-check \
    torch==2.13.0 numpy packaging einops typing_extensions
  # Its metadata asks for a newer Python than its code and wheels do.
  "$megatron_venv/bin/pip" install --quiet --disable-pip-version-check \
    --no-deps --ignore-requires-python megatron-core==0.19.2
fi

# A source distribution that compiles nothing until a kernel is used.
if ! "$megatron_venv/bin/python" -c 'import importlib.metadata as m; m.version("deepspeed")' >/dev/null 2>&1; then
  "$megatron_venv/bin/pip" install --quiet --disable-pip-version-check deepspeed==0.19.8
fi

# Megatron-Bridge sees Megatron's environment through a path file, and has what else it needs (240 MB) to itself: without
# Transformer Engine, loggers and other models' packages, which its runner stands in for.
bridge_venv=${BRIDGE_VENV:-$PWD/.venvs/bridge}
if ! "$bridge_venv/bin/python" -c 'import importlib.metadata as m; assert m.version("megatron-bridge") == "0.6.2"; import omegaconf, torch' >/dev/null 2>&1; then
  "$megatron_python" -m venv "$bridge_venv"
  site='import site; print(site.getsitepackages()[0])'
  "$megatron_venv/bin/python" -c "$site" >"$("$bridge_venv/bin/python" -c "$site")/megatron.pth"
  "$bridge_venv/bin/pip" install --quiet --disable-pip-version-check \
    --no-deps --ignore-requires-python megatron-bridge==0.6.2
  # Not all that its metadata asks for: pip says so, and the runner does without.
  "$bridge_venv/bin/pip" install --quiet --disable-pip-version-check \
    omegaconf hydra-core pyyaml tqdm rich einops six regex pillow transformers==5.12.1
fi

export SHARDWISE_BRIDGE_PYTHON=$bridge_venv/bin/python

# torchtitan pins a data library and others that the environment above has no room for.
torchtitan_venv=${TORCHTITAN_VENV:-$PWD/.venvs/torchtitan}
if ! "$torchtitan_venv/bin/python" -c 'import importlib.metadata as m; assert m.version("torchtitan") == "0.3.0"' >/dev/null 2>&1; then
  "$megatron_python" -m venv "$torchtitan_venv"
  "$torchtitan_venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0
  "$torchtitan_venv/bin/pip" install --quiet --disable-pip-version-check torchtitan==0.3.0
fi

export SHARDWISE_TORCHTITAN_PYTHON=$torchtitan_venv/bin/python
export SHARDWISE_MEGATRON_PYTHON=$megatron_venv/bin/python
export SHARDWISE_DEEPSPEED_PYTHON=$megatron_venv/bin/python

accelerate_venv=${ACCELERATE_VENV:-$PWD/.venvs/accelerate}
if ! "$accelerate_venv/bin/python" -c 'import accelerate, torch, transformers' >/dev/null 2>&1; then
  "$megatron_python" -m venv "$accelerate_venv"
  "$accelerate_venv/bin/pip" install --quiet --disable-pip-version-check \
    torch==2.13.0 transformers==5.24.0 accelerate==1.15.0
fi

# The one package of nanotron. Its own list of requirements has kernels that need a GPU.
if ! "$accelerate_venv/bin/python" -c 'import importlib.metadata as m; m.version("nanotron")' >/dev/null 2>&1; then
  "$accelerate_venv/bin/pip" install --quiet --disable-pip-version-check dacite einops
  "$accelerate_venv/bin/pip" install --quiet --disable-pip-version-check --no-deps nanotron==0.4
fi

export SHARDWISE_ACCELERATE_PYTHON=$accelerate_venv/bin/python
export SHARDWISE_NANOTRON_PYTHON=$accelerate_venv/bin/python

# Debian's own Slurm: controller, daemons and clients, where this is root on a machine with apt-get.
have_slurm() {
  local program
  for program in slurmctld slurmd sbatch srun munged; do
    command -v "$program" >/dev/null || return 1
  done
}
if ! have_slurm && [[ $(id -u) -eq 0 ]] && command -v apt-get >/dev/null; then
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    slurmctld slurmd slurm-client munge >/dev/null || true
fi
have_slurm || echo "Slurm cannot be installed here: its tests are skipped"
