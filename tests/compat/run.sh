#!/bin/sh
# run.sh TEST.py: runs it with Debian's Python, which has Debian's torch, or with COMPAT_PYTHON.
# SPDX-License-Identifier: Apache-2.0
python=${COMPAT_PYTHON:-/usr/bin/python3}
if [ ! -x "$python" ]; then
  echo "SKIPPED: python3 is not installed (there is no $python)"
  exit 77
fi
export LOCKSTEP_BIN="${LOCKSTEP_BIN:-$(cd "$(dirname "$0")/../.." && pwd)/build/release/bin}"
export TORCH_CPP_LOG_LEVEL=ERROR  # its warnings of timeouts that are meant, each with a stack
unset PYTHONPATH PYTHONHOME PYTHONSTARTUP VIRTUAL_ENV
exec "$python" -B -s "$@"
