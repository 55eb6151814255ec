# SPDX-License-Identifier: Apache-2.0
"""What a test of any Python needs of the build: its programs, a known environment, and a skip for want of a module."""
import importlib.util
import os
import sys

SKIPPED = 77


def need(module):
    """Skips the file as a whole where Debian's package of this module is missing: the reason in one line, exit code 77."""
    if importlib.util.find_spec(module) is None:
        print(f"SKIPPED: python3-{module} is not installed")
        sys.exit(SKIPPED)


def program(name):
    """A program of the build."""
    path = os.path.join(os.environ["LOCKSTEP_BIN"], name)
    if not os.access(path, os.X_OK):
        raise FileNotFoundError(f"{path} is not built; LOCKSTEP_BIN must be the folder of the build's programs")
    return path


def environment(**variables):
    """The test's environment without what a launcher, a shell or another Python left in it, and with `variables`."""
    foreign = ("LOCKSTEP_", "TORCHELASTIC_", "TORCH_", "PET_", "OMPI_", "PMI", "SLURM_", "PYTHON", "NCCL_", "GLOO_")
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "MASTER_ADDR",
             "MASTER_PORT")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(foreign) and k not in names}
    # Gloo looks its own host name up unless it is told an interface, and a container's name is often unknown.
    return {**kept, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR",
            **{k: str(v) for k, v in variables.items()}}
