// SPDX-License-Identifier: Apache-2.0
#include "tests/deploy/yaml.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "tests/support/error_of.h"

namespace lockstep::testing::yaml_test {
namespace {

struct Refused {
  const char* text;
  const char* why;
};

TEST(Yaml, RefusesWithTheLine) {
  const Refused cases[] = {{"a: 1\na: 2", "line 2: 'a' comes twice"},
                           {"a: {b: 1, b: 2}", "line 1: 'b' comes twice"},
                           {"a:\n\tb: 1", "line 2: "},
                           {"a: [1, 2", "line 1: "},
                           {"a: 1\n  b: 2", "line 2: "},
                           {"a: \"b", "line 1: "},
                           {"a: b: c", "line 1: "},
                           {"a:\nb: 1", "line 2: a value is missing"},
                           {"a: {b}", "line 1: a value is missing"},
                           {"[a]: 1", "a key that is not text"},
                           {"a: 1\nb", "line 2: "},
                           {"# nothing\n", "nothing to read"},
                           {"a: [1] 2", "line 1: "}};
  for (const Refused& refused : cases) {
    SCOPED_TRACE(refused.text);
    expect_text(error_of([&] { parse_yaml(refused.text); }), {refused.why});
  }
}

}  // namespace
}  // namespace lockstep::testing::yaml_test
