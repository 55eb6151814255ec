# cmake -DCHECK=check_claims.cmake -DWORK=folder -P check_claims_test.cmake: the check finds what it is there to find.
# SPDX-License-Identifier: Apache-2.0
cmake_minimum_required(VERSION 3.25)
include("${CMAKE_CURRENT_LIST_DIR}/expect_check.cmake")

# expect(NAME FRAGMENT [VARIABLE TEXT]...): a tree of the texts below, with those of VARIABLE replaced, fails with FRAGMENT in its
# message; empty: it passes.
function(expect name fragment)
  set(rows "| `speed@1.9` | 94 % | 0.941 | 2026-11-21 | [old](#torch-19-2026-11-21) |
| `speed@1.10` | 83 % | 0.827 | 2026-11-24 | [new](#torch-110s-share-2026-11-24) |
| `step` | 2.6 ms | 2.64 | 2026-11-24 | [new](#torch-110s-share-2026-11-24) |")
  set(sections "## Torch 1.9, 2026-11-21\n\n| 0.941 |\n\n## Torch 1.10's share, 2026-11-24\n\n| 0.827 | 12.64 | 2.64 ms |")
  set(readme "It has <!-- claim: speed@1.10 -->83 %, and had <!-- claim: speed@1.9 -->94 %.")
  set(other "A step takes **<!-- claim: step -->2.6 ms**; 7 ms were measured once.")
  while(ARGN)
    list(POP_FRONT ARGN variable text)
    set(${variable} "${text}")
  endwhile()
  set(root "${WORK}/${name}")
  file(REMOVE_RECURSE "${root}")
  file(WRITE "${root}/benchmarks/RESULTS.md" "# Results\n\n## Numbers on the pages\n\n| claim | | | | |\n| --- | --- | --- | --- | --- |\n${rows}\n\n${sections}\n")
  file(WRITE "${root}/README.md" "# A\n\n${readme}\n")
  file(WRITE "${root}/docs/OTHER.md" "${other}\n")
  expect_check("${name}" "${root}" "${fragment}")
endfunction()

set(old "| `speed@1.9` | 94 % | 0.941 | 2026-11-21 | [old](#torch-19-2026-11-21) |")
set(new "| `speed@1.10` | 83 % | 0.827 | 2026-11-24 | [new](#torch-110s-share-2026-11-24) |")
set(step "| `step` | 2.6 ms | 2.64 | 2026-11-24 | [new](#torch-110s-share-2026-11-24) |")

expect(right "")
expect(other_words "" readme "| was **<!-- claim: speed@1.9 -->94 %**[1] | <!-- claim: speed@1.10 --> 83 % |" other "<!- no -> about\n- <!-- claim: step -->2.6 ms.")
expect(another_number "'speed@1.10' is '83 %' by benchmarks/RESULTS.md" readme "It has <!-- claim: speed@1.10 -->94 %.")
expect(longer_number "'step' is '2.6 ms' by benchmarks/RESULTS.md" other "A step takes <!-- claim: step -->2.64 ms.")
expect(on_another_page "docs/OTHER.md:1: 'step' is" other "A step takes <!-- claim: step -->2.5 ms.")
expect(only_the_old "shows 'speed@1.9' and not 'speed@1.10'" readme "It has <!-- claim: speed@1.9 -->94 %.")
expect(no_claim "has no claim 'pace'" readme "It has <!-- claim: speed@1.10 -->83 % and <!-- claim: pace -->9 ms.")
expect(no_page "no page shows the claim 'step'" other "A step is short.")
expect(no_mark "README.md:3: '7 ms' has no mark" readme "It has <!-- claim: speed@1.10 -->83 % and 7 ms.")
expect(no_mark_before "README.md:3: '41 %' has no mark" readme "It had 41 % and has <!-- claim: speed@1.10 -->83 %.")
expect(in_code "" readme "It has <!-- claim: speed@1.10 -->83 %, `--wait 7 ms`, `<!-- claim: NAME -->`, 25 MiB, 300 s and 12 users <!-- claim: speed@1.9 -->94 %.\n```\n7 ms\n```")
expect(begins_the_line "a mark begins the line" readme "It has\n<!-- claim: speed@1.10 -->83 %.")
expect(torn_mark "a mark is" readme "It has <!-- claim: speed@1.10\n-->83 %.")
expect(not_measured "is '0.829', which is not in its section" rows "${old}\n| `speed@1.10` | 83 % | 0.829 | 2026-11-24 | [new](#torch-110s-share-2026-11-24) |\n${step}")
expect(part_of_a_number "is '2.6', which is not in its section" rows "${old}\n${new}\n| `step` | 2.6 ms | 2.6 | 2026-11-24 | [new](#torch-110s-share-2026-11-24) |")
expect(rounded_up "'speed@1.10' is '0.827' in its section and '84 %' on the pages" rows
       "${old}\n| `speed@1.10` | 84 % | 0.827 | 2026-11-24 | [new](#torch-110s-share-2026-11-24) |\n${step}")
expect(as_it_stands "" rows "${old}\n${new}\n| `step` | 2.64 ms | | 2026-11-24 | [new](#torch-110s-share-2026-11-24) |" other "A step: <!-- claim: step -->2.64 ms")
expect(another_day "'step' was measured on '2026-11-25'" rows "${old}\n${new}\n| `step` | 2.6 ms | 2.64 | 2026-11-25 | [new](#torch-110s-share-2026-11-24) |")
expect(no_section "no heading has that address" rows "${old}\n${new}\n| `step` | 2.6 ms | 2.64 | 2026-11-24 | [new](#torch-111) |")
expect(twice "two rows for the claim 'step'" rows "${old}\n${new}\n${step}\n${step}")
expect(not_a_row "a row is not" rows "${old}\n${new}\n${step}\n| `pace` | 7 ms |")
expect(no_table "no row below" rows "")
