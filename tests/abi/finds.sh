#!/usr/bin/env bash
# finds.sh CHECK WORK COMPILER: symbols.sh finds what it is there to find, in small libraries with one fault each.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
check=$1 work=$2 compiler=$3
failed=0

# A library, a plug-in and an archive of a room without a fault; each case changes it.
begin() {
  rm -rf "$work"
  mkdir -p "$work/lib" "$work/include/lockstep"
  cd "$work"
  cat >include/lockstep/reducer.h <<'EOF'
#define LOCKSTEP_API __attribute__((visibility("default")))
namespace lockstep {
class LOCKSTEP_API Reducer {
 public:
  virtual ~Reducer();
  int step() const;
  struct Impl;
};
template <typename T>
T twice(T value) { return value + value; }
enum class Op { sum };
LOCKSTEP_API int number_of(Op op);
namespace data {
LOCKSTEP_API int chunk(int rows);
}  // namespace data
}  // namespace lockstep
EOF
  cat >room.cc <<'EOF'
#include "lockstep/reducer.h"
namespace lockstep {
Reducer::~Reducer() {}
int Reducer::step() const { return twice(2); }
LOCKSTEP_API int wake();
int wake() { return 1; }
int data::chunk(int rows) { return rows; }
int number_of(Op) { return 3; }
struct Level {};
int number_of(const Level& level);  // an overload that is internal
int number_of(const Level&) { return 2; }
}  // namespace lockstep
EOF
  echo 'extern "C" __attribute__((visibility("default"))) void lockstep_plugin_backend(void*) {}' >plugin.cc
  echo '_ZN8lockstep4wakeEv  # lockstep::wake()' >list
  inside='*'
}

compile() {
  "$compiler" -std=c++20 -fPIC -fvisibility=hidden -fvisibility-inlines-hidden -I include "$@"
}
build() {
  local names
  names=$(sed -n 's/^\(_Z[^ ]*\).*/\1;/p' list)
  echo "${names:+LOCKSTEP_PRIVATE_1.2.3 { global: $names \};} LOCKSTEP_1.2 { global: _Z*8lockstep*; local: $inside; };" >map
  compile -c room.cc -o room.o
  ar rc lib/liblockstep_room.a room.o
  compile -shared -Wl,--version-script=map room.o -o lib/liblockstep.so
  compile -shared plugin.cc -o lib/liblockstep_mpi.so
}

# expect NAME FRAGMENT [COMMAND]: after COMMAND, the check fails with FRAGMENT in what it says; empty: it passes.
expect() {
  local name=$1 fragment=$2 said status=0
  begin
  eval "${3:-}"
  build
  said=$("$check" --lib "$work/lib" --headers "$work/include" --list "$work/list" 2>&1) || status=$?
  if [[ -z $fragment && $status -ne 0 ]] || [[ -n $fragment && ($status -ne 1 || $said != *"$fragment"*) ]]; then
    printf '%s: expected %s, got exit code %s and:\n%s\n' "$name" "${fragment:-to pass}" "$status" "$said" >&2
    failed=1
  fi
}
# add TEXT FILE
add() { printf '%s\n' "$1" >>"$2"; }
header=include/lockstep/reducer.h

expect faultless ""
expect leaked_function "exports lockstep::leak(), which no public header declares" \
  "add 'namespace lockstep { LOCKSTEP_API void leak(); void leak() {} }' room.cc"
expect leaked_class "exports vtable for lockstep::Bell, which no public header declares" \
  "add 'namespace lockstep { class LOCKSTEP_API Bell { virtual void ring(); }; void Bell::ring() {} }' room.cc"
expect leaked_nested_type "exports lockstep::Reducer::Impl::plan(), of a type that no public header defines" \
  "add 'struct lockstep::Reducer::Impl { void plan(); }; void lockstep::Reducer::Impl::plan() {}' room.cc"
expect leaked_package "exports spdlog::info(), which is not in namespace lockstep" \
  "add 'namespace spdlog { LOCKSTEP_API void info(); void info() {} }' room.cc; inside=nothing"
expect forgotten_function "lockstep::data::chunk(int) is declared in a public header and exported by no library" \
  "sed -i 's/LOCKSTEP_API int chunk/int chunk/' $header"
expect forgotten_class "lockstep::Reducer::step() const is declared in a public header and exported by no library" \
  "sed -i 's/class LOCKSTEP_API/class/' $header"
expect stale_list "does not export _ZN8lockstep4goneEv, which" "add '_ZN8lockstep4goneEv  # lockstep::gone()' list"
expect unlisted "exports lockstep::wake(), which no public header declares" ": >list"
expect public_in_list "a public header declares it" "add '_ZNK8lockstep7Reducer4stepEv  # lockstep::Reducer::step() const' list"
expect leaking_plugin "exports another; a plug-in exports lockstep_plugin_* alone" \
  "add 'extern \"C\" __attribute__((visibility(\"default\"))) void another() {}' plugin.cc"
expect plugin_without_entry "exports no lockstep_plugin_*" "sed -i 's/lockstep_plugin_backend/renamed/' plugin.cc"
expect macro_of_internals "is public and uses LOCKSTEP_INTERNAL_API" "add '#define X LOCKSTEP_INTERNAL_API' $header"

# --update writes the list that then passes, and takes no public name into it.
update() {
  : >list
  build
  "$check" --update --lib "$work/lib" --headers "$work/include" --list "$work/list" >said
}
expect updated "" update
[[ $(grep -c '^_Z' list) == 1 ]] || { echo "updated: the list is wrong:" >&2; cat list >&2; failed=1; }

exit "$failed"
