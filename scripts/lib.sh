# shellcheck shell=bash disable=SC2034
# Sourced by the scripts beside it: what they share. Each of them can be run twice, in any order, and needs no network
# once the packages are there.
# SPDX-License-Identifier: Apache-2.0
set -Eeuo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
self=$(realpath "$0")
program=scripts/$(basename "$0")
[[ $self != */tests/extra/* ]] || program="scripts/test --extra $(basename "$0")"
caller=$PWD  # a relative path of the caller is relative to this
cd "$root"

# What the build needs, and what the tests need beside it. Nothing else is ever installed or downloaded.
build_packages=(g++ cmake ninja-build pkg-config libspdlog-dev libcli11-dev nlohmann-json3-dev libxxhash-dev
                libdnnl-dev libssl-dev)
plugin_packages=(libopenmpi-dev)
gtest_packages=(libgtest-dev libgmock-dev)
test_packages=("${gtest_packages[@]}" libyaml-cpp-dev "${plugin_packages[@]}" openmpi-bin clang-format git iproute2
               dpkg-dev file tmux procps python3 python3-numpy)
sanitizer_packages=(clang libclang-rt-dev lld llvm clang-tidy)  # rt: the sanitizers themselves; llvm: names in their stacks
peer_packages=(libgloo-dev)  # headers for the benchmark beside c10d
torch_version=2.15.0  # PyTorch's own package: the LibTorch and the Python peers of CI

say() { printf '%s: %s\n' "$program" "$*"; }
die() {
  trap - ERR
  printf '%s: %s\n' "$program" "$*" >&2
  exit 1
}
trap 'die "failed at line $LINENO of ${BASH_SOURCE[0]:-$0}: $BASH_COMMAND"' ERR

# remedy_in FILE: the remedy for a cause that FILE, the output of what failed, names. Nothing for a cause that was not seen.
remedy_in() {
  local cause remedy
  while IFS='|' read -r cause remedy; do
    if grep -qE -- "${cause//&/|}" "$1"; then
      echo "$remedy"
      return
    fi
  done <<'CAUSES'
(initializing source&pinging container registry)|No image registry was reached: scripts/test --extra image --bootstrap makes the base itself, and --base IMAGE takes one that is here.
Temporary failure (in name resolution&resolving)&Could not (resolve&connect)&Unable to connect&Network is unreachable&Failed to establish a new connection&no such host&dial tcp|No server was reached: is there a network, and does it want a proxy (http_proxy)?
Unable to locate package&has no installation candidate|This distribution's lists do not have a package of that name: install its equivalent.
Could not get lock|Another package manager is at work: wait for it and try again.
No space left on device|The disk is full: df -h . says which.
(Permission denied&Read-only file system&Operation not permitted&cannot make directory)|The lines above name what may not be written: choose another place, or another user.
does not match the source&is different than the directory&oes not match the generator|The build folder is another clone's or another generator's: remove it and try again.
CAUSES
}

# logged FILE WHAT HINT COMMAND...: runs it with its output in FILE; when it fails, shows the end of it, the remedy if the
# cause is known, and HINT, which holds for every cause.
logged() {
  local file=$1 what=$2 hint=$3 status=0
  shift 3
  mkdir -p "$(dirname "$file")"
  "$@" >"$file" 2>&1 || status=$?
  if ((status != 0)); then
    tail -n 25 "$file" >&2
    set -- "$(remedy_in "$file")"
    die "$what failed (exit code $status; all of it in $file).${1:+ $1}${hint:+ $hint}"
  fi
}

# need_packages PACKAGE...: installs those that are missing. Without any missing it asks nobody.
need_packages() {
  command -v dpkg-query >/dev/null || die "this is no Debian or Ubuntu; install the equivalents of: $*"
  local missing=() package
  for package in "$@"; do
    [[ $(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true) == installed ]] || missing+=("$package")
  done
  ((${#missing[@]} == 0)) && return
  local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o Dpkg::Use-Pty=0)
  if ((EUID != 0)); then
    command -v sudo >/dev/null || die "missing packages and neither root nor sudo; have somebody run:" \
      "apt-get install -y --no-install-recommends ${missing[*]}"
    apt=(sudo "${apt[@]}")
  fi
  say "installing ${#missing[@]} packages and what they need: ${missing[*]}"
  "${apt[@]}" update >build/apt.log 2>&1 || true  # without network the install below may still find all it needs
  logged build/apt.log "apt-get install" "By hand: apt-get install --no-install-recommends ${missing[*]}" \
    "${apt[@]}" install --no-install-recommends "${missing[@]}"
}

# need_torch VERSION: sets Torch_DIR, LibTorch's CMake files, and torch_python, a Python that has torch of the same version.
# VERSION is a number or 'newest' (of today): PyTorch's own package with what it needs but triton, in an environment of
# Debian's Python below ~/.cache/lockstep, 3 GB to download and 4.5 GB on the disk, once per version. Or 'debian':
# libtorch-dev and python3-torch.
need_torch() {
  local version=$1 wanted=torch folder needs
  if [[ $version == debian ]]; then
    need_packages python3-torch libtorch-dev libopenblas0-pthread  # the reference BLAS is no peer
    torch_python=/usr/bin/python3
    Torch_DIR=$(dpkg -L libtorch-dev | sed -n 's|/TorchConfig.cmake$||p')
    return
  fi
  [[ $version == newest ]] || wanted=torch==$version
  folder=${XDG_CACHE_HOME:-$HOME/.cache}/lockstep/torch-$version
  torch_python=$folder/bin/python3
  mkdir -p "$folder"
  exec 8>"$folder/lock"
  flock 8
  if [[ ! -e $folder/complete || $version == newest ]]; then
    need_packages python3-venv
    say "installing $wanted in $folder"
    rm -f "$folder/complete"
    logged build/torch.log "python3 -m venv" "" /usr/bin/python3 -m venv "$folder"
    logged build/torch.log "pip install $wanted" "Remove $folder to begin anew." \
      "$torch_python" -m pip install --no-cache-dir --upgrade --no-deps "$wanted"
    mapfile -t needs < <("$torch_python" -c 'import importlib.metadata as metadata
for need in metadata.requires("torch"):
    if "triton" not in need and "extra ==" not in need: print(need)')
    logged build/torch.log "pip install of what torch needs" "Remove $folder to begin anew." \
      "$torch_python" -m pip install --no-cache-dir --upgrade "${needs[@]}" numpy
    touch "$folder/complete"
  fi
  exec 8>&-
  Torch_DIR=$("$torch_python" -c 'import importlib.util as util
print(util.find_spec("torch").submodule_search_locations[0], end="/share/cmake/Torch")')
}

# Compile jobs: the cores we may use, but no more than one per GB of free memory.
jobs() {
  local cores memory
  cores=$(nproc)
  memory=$(awk '/^MemAvailable:/ {print int($2 / 1048576)}' /proc/meminfo)
  ((memory < 1)) && memory=1
  echo $((cores < memory ? cores : memory))
}

# Where ccache is installed it serves every clone; paths below the root don't count.
launcher=()
if command -v ccache >/dev/null; then
  export CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros
  launcher=(-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
fi

# need_cmake: dies with the version that is there, where CMake would say something of presets or of build/.
need_cmake() {
  local have
  have=$(cmake --version | awk 'NR == 1 {print $3}')
  printf '3.25\n%s\n' "$have" | sort -VC ||
    die "CMake 3.25 or newer is needed, and this is $have. Remedy: python3 -m pip install 'cmake>=3.25'"
}

# configure PRESET [-DNAME=VALUE...]. With WERROR=ON, which .ci/run sets, warnings are errors in every build of these scripts:
# where one asked for it and the next did not, all would be compiled again.
configure() {
  local preset=$1
  shift
  need_cmake
  logged "build/$preset.configure.log" "cmake --preset $preset" "" \
    cmake --preset "$preset" "${launcher[@]+"${launcher[@]}"}" ${WERROR:+"-DLOCKSTEP_WERROR=$WERROR"} "$@"
}

# configure_for_programs [-DNAME=VALUE...]: build/release, without the tests unless it is there already with them.
configure_for_programs() {
  local anew=()
  [[ -f build/release/build.ninja ]] || anew=(-DLOCKSTEP_BUILD_TESTS=OFF -DLOCKSTEP_BUILD_BENCHMARKS=OFF)
  configure release "${anew[@]+"${anew[@]}"}" "$@"
}

# tell_tenths: of ninja's output the errors, and a line for each tenth of the steps. In bash: mawk would hold lines back.
tell_tenths() {
  local line told=0
  while IFS= read -r line || [[ -n $line ]]; do
    if [[ $line =~ ^\[([0-9]+)/([0-9]+)\]\  ]]; then
      local built=${BASH_REMATCH[1]} all=${BASH_REMATCH[2]}
      if ((all > 20 && 10 * built / all > told)); then
        told=$((10 * built / all))
        say "built $built of $all"
      fi
    elif [[ $line != "ninja: Entering directory"* && $line != "ninja: no work to do"* ]]; then
      printf '%s\n' "$line"
    fi
  done
}

# build PRESET [TARGET...]: progress on a terminal, a line for each tenth elsewhere, errors always.
build() {
  local preset=$1
  shift
  if [[ -t 1 ]]; then
    ninja -C "build/$preset" -j "$(jobs)" "$@"
  else
    ninja -C "build/$preset" -j "$(jobs)" "$@" | tell_tenths
  fi || die "the build of build/$preset failed; its first error, unless it was interrupted, is above"
}

mkdir -p build
