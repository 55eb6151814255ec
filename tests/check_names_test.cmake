# cmake -DCHECK=check_names.cmake -DWORK=folder -P check_names_test.cmake: the check finds what it is there to find.
# SPDX-License-Identifier: Apache-2.0
cmake_minimum_required(VERSION 3.25)
include("${CMAKE_CURRENT_LIST_DIR}/expect_check.cmake")

# expect(NAME PATH TEXT FRAGMENT): a tree with one file more, of TEXT, fails with FRAGMENT in its message; empty: it passes.
function(expect name path text fragment)
  set(root "${WORK}/${name}")
  file(REMOVE_RECURSE "${root}")
  file(WRITE "${root}/README.md" "Train.\n")
  file(WRITE "${root}/runtime/include/lockstep/ddp/ok.h" "\nnamespace lockstep {\n\nnamespace detail {\n")
  file(WRITE "${root}/${path}" "${text}\n")
  expect_check("${name}" "${root}" "${fragment}")
endfunction()

set(include runtime/include/lockstep)
expect(own ${include}/data/a.h "\nnamespace lockstep::data {" "")
expect(deeper ${include}/data/tensor/a.h "\nnamespace lockstep::data {" "")
expect(outside ${include}/data/a.h "\nnamespace lockstep {" "what is public in data is in lockstep::data")
expect(inside ${include}/ddp/a.h "\nnamespace lockstep::ddp {" "what is public in ddp is in lockstep")
expect(second ${include}/data/a.h "\nnamespace lockstep::data {\n}\n\nnamespace lockstep {\nusing data::DataLoader;" "opens the namespace lockstep")
expect(ahead ${include}/data/a.h "\nnamespace lockstep {\nclass UniqueFd;\n}\n\nnamespace lockstep::data {" "")
expect(unknown ${include}/attic/a.h "\nnamespace lockstep {" "which namespace the room attic has")
expect(gone examples/a.cc "ls::TensorDataset dataset(x);" "'ls::TensorDataset ' is gone")
expect(here examples/a.cc "ls::data::TensorDataset dataset(x);" "")
expect(gone_page docs/A.md "`lockstep::Batch`" "is gone")
expect(gone_path tests/a.cc "#include \"lockstep/nn/loss.h\"" "'lockstep/nn/loss.h' is gone")
expect(gone_header examples/a.cc "#include <lockstep/nn/linear.h>" "'lockstep/nn/linear.h' is gone")
