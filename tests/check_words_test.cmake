# cmake -DCHECK=check_words.cmake -DWORK=folder -P check_words_test.cmake: the check finds what it is there to find.
# SPDX-License-Identifier: Apache-2.0
cmake_minimum_required(VERSION 3.25)
include("${CMAKE_CURRENT_LIST_DIR}/expect_check.cmake")

# expect(NAME LIMITS FRAGMENT): two pages of four words each, and these lines of tests/words.txt.
function(expect name limits fragment)
  set(root "${WORK}/${name}")
  file(REMOVE_RECURSE "${root}")
  file(WRITE "${root}/README.md" "# A\n\nTrain; [it](here)\n")
  file(WRITE "${root}/docs/RUN.md" "Start four ranks now.\n")
  file(WRITE "${root}/docs/ERRORS.md" "As many as there are.\n")
  file(WRITE "${root}/tests/words.txt" "${limits}")
  expect_check("${name}" "${root}" "${fragment}")
endfunction()

expect(within "4 README.md\n5 docs/RUN.md\n" "")
expect(too_long "4 README.md\n3 docs/RUN.md\n" "docs/RUN.md: has 4 words, its limit is 3")
expect(no_limit "4 README.md\n" "docs/RUN.md: has no line in tests/words.txt")
expect(no_page "4 README.md\n4 docs/RUN.md\n9 docs/GONE.md\n" "there is no page docs/GONE.md")
