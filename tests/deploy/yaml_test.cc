#include "tests/deploy/yaml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/base/error.h"

namespace lockstep::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

TEST(Yaml, ReadsWhatTheFilesAreWrittenIn) {
  const auto documents = parse_yaml(R"(# a comment
a: 1   # another
b:
  - {name: x, value: "a # b: c"}
  - name: y
    ports: [p, "q, r"]
  -   deep:
        deeper: 'it: is'
c:
- plain text, with a comma
d: "${USER:?a question}"
---
e: http://host:80/x
)");
  ASSERT_EQ(documents.size(), 2U);
  EXPECT_EQ(documents[0], json::parse(R"({
    "a": "1",
    "b": [{"name": "x", "value": "a # b: c"}, {"name": "y", "ports": ["p", "q, r"]}, {"deep": {"deeper": "it: is"}}],
    "c": ["plain text, with a comma"], "d": "${USER:?a question}"})"));
  EXPECT_EQ(documents[1], json::parse(R"({"e": "http://host:80/x"})"));
}

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
                           {"[a]: 1", "a key that is no text"},
                           {"a: 1\nb", "line 2: "},
                           {"# nothing\n", "nothing to read"},
                           {"a: [1] 2", "line 1: "}};
  for (const Refused& refused : cases) {
    try {
      parse_yaml(refused.text);
      ADD_FAILURE() << "read: " << refused.text;
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), HasSubstr(refused.why)) << refused.text;
    }
  }
}

}  // namespace
}  // namespace lockstep::testing
