#!/usr/bin/env bash
# wrong.sh SOURCE WORK CXX: programs with a mistake that newcomers make. The compiler's output has the remedy, and is short.
# SPDX-License-Identifier: Apache-2.0
set -Eeuo pipefail
trap 'echo "wrong: failed at line $LINENO: $BASH_COMMAND" >&2' ERR
source=$1 work=$2 cxx=$3
rm -rf "$work"
mkdir -p "$work"
cd "$work"
failed=0
# g++ takes a precompiled header instead of the one that is included; other compilers read it each time.
flags=(-std=c++20 -Werror=unused-result)
mkdir -p precompiled/lockstep
"$cxx" "${flags[@]}" -I "$source/runtime/include" -x c++-header "$source/runtime/include/lockstep/lockstep.h" \
  -o precompiled/lockstep/lockstep.h.gch 2>output.log || { cat output.log; exit 1; }  # warns of #pragma once in it

# compile STANDARD BODY: of a program with a Dataset's members, or with statements.
compile() {
  printf '#include <lockstep/lockstep.h>\nnamespace ls = lockstep;\n%s\n' "$2" >program.cc
  "$cxx" "${flags[@]}" "-std=$1" -fsyntax-only -I precompiled -I "$source/runtime/include" program.cc >output.log 2>&1
}
# refused STANDARD LINES TEXT BODY: does not compile; the first error has TEXT, or the source line that it points to; there are
# at most LINES lines of output.
refused() {
  if compile "$1" "$4"; then
    echo "wrong: compiles, '$3' was expected: $4"
    failed=1
  elif ! grep -E -m1 -A8 'error:' output.log | grep -qF -- "$3" || (($(wc -l <output.log) > $2)); then
    echo "wrong: '$3' in the first error and at most $2 lines were expected: $4"
    head -n 40 output.log
    failed=1
  fi
}
# dataset MEMBERS: a program that gives a dataset with these members to a DataLoader.
dataset() {
  printf 'struct Mine { %s };\nint main() { ls::data::DataLoader loader(Mine(), %s); }' "$1" \
    'ls::data::GlobalBatchSampler(3, 0, 1, {.global_batch = 2})'
}
size='std::int64_t size() const { return 3; }'
batch='int batch(std::span<const std::int64_t> ids) const { return int(ids.size()); }'

compile c++20 "$(dataset "$size $batch")" || { cat output.log; exit 1; }  # so that the errors below are those meant
refused c++20 16 'the dataset has no `std::int64_t size() const`' "$(dataset "$batch")"
refused c++20 16 'the dataset has no `Batch batch(std::span<const std::int64_t> ids) const`' "$(dataset "$size")"
refused c++20 16 "the dataset's batch(ids) is not const" "$(dataset "$size ${batch/) const/)}")"
refused c++20 16 'wrap it in lockstep::data::BySample' "$(dataset "$size int get(std::int64_t) const { return 0; }")"

compile c++20 'int main() { ls::backward(ls::Tensor()); }' || { cat output.log; exit 1; }
refused c++20 16 'write ddp.backward(loss)' 'int main() { ls::Tensor().backward(); }'

# A temporary's memory ends with the expression that made it. In C++20 that is before the body of a `for` over it.
of_a_tensor() { printf 'const ls::Tensor a = ls::Tensor::ones({2});\nint main() { %s }' "$1"; }
compile c++20 "$(of_a_tensor 'for (float v : a.values<float>()) (void)v; for (auto n : a.shape().extents()) (void)n;')" ||
  { cat output.log; exit 1; }
refused c++20 16 'name the tensor first' "$(of_a_tensor 'for (float v : (a + a).values<float>()) (void)v;')"
refused c++20 16 'name the tensor first' "$(of_a_tensor 'const float* first = a.grad().data<float>();')"
refused c++20 16 'name the tensor first' "$(of_a_tensor 'const ls::BufferView sum = ls::relu(a).view();')"
refused c++20 16 'name the shape first' "$(of_a_tensor 'for (auto n : ls::Shape({2}).extents()) (void)n;')"
refused c++20 16 'name the shape first' "$(of_a_tensor 'for (auto n : (a + a).shape().extents()) (void)n;')"
refused c++20 16 'name the file first' 'std::span<const std::byte> bytes = ls::data::MappedFile("a").bytes();'
refused c++20 16 'name the dataset first' 'std::span<const std::byte> first = ls::data::MappedRecords("a", {.record = 1}).record(0);'
# What is returned by value may be kept: nothing below refers to a temporary.
values='const ls::Shape& shape = (a + a).shape(); const ls::Tensor& leaf = ls::Tensor::ones({2}).set_requires_grad();
  for (const auto& [name, tensor] : ls::checkpoint::SafetensorsFile("a").tensors()) (void)tensor;
  for (const auto& [key, value] : ls::checkpoint::SafetensorsFile("a").metadata()) (void)value;
  static_assert(!std::is_reference_v<decltype(ls::checkpoint::SafetensorsFile("a").foreign())>);
  static_assert(!std::is_reference_v<decltype(ls::Tensor().shape())>);
  static_assert(!std::is_reference_v<decltype(ls::Tensor().set_requires_grad())>);'
compile c++20 "$(of_a_tensor "$values")" || { echo "wrong: a reference into a temporary"; cat output.log; exit 1; }

compile c++20 'void f(ls::ProcessGroup& group) { group.barrier().wait(); }' || { cat output.log; exit 1; }
refused c++20 16 'nodiscard' 'void f(ls::ProcessGroup& group) { group.barrier(); }'

# A user's file gets no macro of ours whose name another library may have: the line of each #define says which file it is from.
"$cxx" -std=c++20 -E -dD -I "$source/runtime/include" -include lockstep/lockstep.h -x c++ /dev/null >macros.txt
macros=$(awk '/^# [0-9]/ { ours = $3 ~ /\/lockstep\// } ours && $1 == "#define" { print $2 }' macros.txt)
if ! grep -q '^LOCKSTEP_API$' <<<"$macros" || grep -v '^LOCKSTEP_' <<<"$macros"; then
  echo "wrong: lockstep.h defines the macros above, whose names do not begin with LOCKSTEP_, or the list is empty: $macros"
  failed=1
fi

# Macros with which the program's containers would not be the library's.
for macro in _GLIBCXX_DEBUG _GLIBCXX_USE_CXX11_ABI=0; do
  if "$cxx" -std=c++20 -fsyntax-only "-D$macro" -I "$source/runtime/include" -include lockstep/lockstep.h -x c++ /dev/null 2>output.log ||
    ! grep -m1 'error:' output.log | grep -qF "${macro%=0}"; then
    echo "wrong: compiles with $macro, or its first error does not name it"
    head -n 5 output.log
    failed=1
  fi
done

# Macros of Qt, curses, X11, the C library and glog, which a program may have before our headers.
foreign=(signals=public slots= emit= 'foreach(a,b)=for (a : b)' 'timeout(delay)=wtimeout(stdscr, delay)' OK=0 ERR=-1
  TRUE=1 FALSE=0 None=0L Bool=int Status=int Success=0 True=1 False=0 Always=2 'major(x)=gnu_dev_major(x)'
  'minor(x)=gnu_dev_minor(x)' linux=1 unix=1 I=_Complex_I 'CHECK(x)=if (!(x)) abort()' 'LOG(x)=log_stream(x)' DEBUG=1
  INFO=1 ERROR=0)
if ! "$cxx" -std=c++20 -fsyntax-only "${foreign[@]/#/-D}" -I "$source/runtime/include" -include lockstep/lockstep.h \
  -x c++ /dev/null 2>output.log; then
  echo "wrong: lockstep.h does not compile with other libraries' macros"
  grep -m3 'error:' output.log
  failed=1
fi

# What follows the first error comes from the standard library, which has no <span> there.
refused c++17 10000 'lockstep needs C++20: compile with -std=c++20' 'int main() {}'
exit $failed
