// SPDX-License-Identifier: Apache-2.0
// Each message of the transcripts in tests/golden is read, cut at every byte, and written back to the same bytes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <stdexcept>

#include "proto/push.h"
#include "proto/reply.h"
#include "proto/request.h"
#include "tests/golden/golden.h"

namespace lockstep::proto::golden_test {
namespace {

using golden::Conversation;
using golden::Step;
using ::testing::ElementsAreArray;

// A message as the readers and writers see it.
struct Message {
  const Step* step;
  Dialect dialect;
  std::size_t keys = 0;  // of the request that a reply answers
};

std::vector<Message> messages_of(const Conversation& conversation) {
  std::vector<Message> messages;
  std::map<std::pair<char, Op>, std::size_t> asked;
  for (const Step& step : conversation.steps) {
    if (step.kind == Step::Kind::request) asked[{step.client, step.op}] = contents_of(step).keys.size();
    if (step.kind != Step::Kind::request && !step.from_server()) continue;
    messages.push_back({&step, conversation.dialect, asked[{step.client, step.op}]});
  }
  return messages;
}

// One reader for each kind of message, behind one face.
class AnyReader {
 public:
  explicit AnyReader(const Message& message)
      : step_(*message.step),
        request_({}, message.dialect),
        reply_(step_.kind == Step::Kind::reply ? step_.op : Op::ping, message.keys),
        push_(step_.kind == Step::Kind::event ? PushFormat::watch_event : PushFormat::frame) {}

  Status read(std::string_view input) {
    if (step_.kind == Step::Kind::request) return request_.read(input);
    return step_.kind == Step::Kind::reply ? reply_.read(input) : push_.read(input);
  }
  std::size_t size() const {
    if (step_.kind == Step::Kind::request) return request_.size();
    return step_.kind == Step::Kind::reply ? reply_.size() : push_.size();
  }
  // It has read all that the step says.
  void expect_whole() const {
    const bool asks = step_.kind == Step::Kind::request;
    const Contents& contents = asks                              ? request_.request().contents
                               : step_.kind == Step::Kind::reply ? reply_.contents()
                                                                 : push_.contents();
    const golden::OwnedContents wanted = contents_of(step_);
    EXPECT_THAT(contents.keys, ElementsAreArray(wanted.keys));
    EXPECT_THAT(contents.values, ElementsAreArray(wanted.values));
    EXPECT_EQ(contents.number, wanted.number);
    EXPECT_EQ(size(), step_.bytes.size());
    EXPECT_TRUE(!asks || request_.request().op == step_.op);
  }

 private:
  const Step& step_;
  RequestReader request_;
  ReplyReader reply_;
  PushReader push_;
};

std::string written(const Message& message) {
  const golden::OwnedContents contents = contents_of(*message.step);
  std::string out;
  switch (message.step->kind) {
    case Step::Kind::request: write_request(out, {message.step->op, contents.view()}, message.dialect); break;
    case Step::Kind::reply: write_reply(out, message.step->op, contents.view()); break;
    case Step::Kind::event: write_push(out, PushFormat::watch_event, contents.view()); break;
    default: write_push(out, PushFormat::frame, contents.view()); break;
  }
  return out;
}

class GoldenTest : public ::testing::TestWithParam<Conversation> {};
INSTANTIATE_TEST_SUITE_P(Protocol, GoldenTest, ::testing::ValuesIn(golden::conversations()),
                         [](const auto& param) { return golden::test_name(param.param); });

TEST_P(GoldenTest, IsWrittenToTheSameBytes) {
  for (const Message& message : messages_of(GetParam())) {
    EXPECT_EQ(written(message), message.step->bytes) << message.step->where;
  }
}

TEST_P(GoldenTest, IsReadHoweverItArrivesAndLeavesWhatFollows) {
  for (const Message& message : messages_of(GetParam())) {
    const std::string& bytes = message.step->bytes;
    const std::string followed = bytes + "\x01next";
    AnyReader steady(message);  // byte by byte
    for (std::size_t split = 0; split < bytes.size(); ++split) {
      SCOPED_TRACE(message.step->where + ", split at " + std::to_string(split));
      // Each piece in memory of its own: nothing may be kept of where the bytes were.
      ASSERT_EQ(steady.read(std::string(bytes, 0, split)), Status::need_more);
      AnyReader reader(message);
      ASSERT_EQ(reader.read(std::string(bytes, 0, split)), Status::need_more);
      ASSERT_EQ(reader.read(bytes), Status::ok);
      reader.expect_whole();
    }
    SCOPED_TRACE(message.step->where);
    for (AnyReader reader : {steady, AnyReader(message)}) {
      ASSERT_EQ(reader.read(followed), Status::ok);
      reader.expect_whole();
    }
  }
}

TEST_P(GoldenTest, OneReaderReadsTheStream) {
  std::map<char, std::string> streams;
  std::map<char, std::vector<Message>> wanted;
  for (const Message& message : messages_of(GetParam())) {
    if (message.step->kind != Step::Kind::request) continue;
    streams[message.step->client] += message.step->bytes;
    wanted[message.step->client].push_back(message);
  }
  for (const auto& [client, stream] : streams) {
    RequestReader reader({}, GetParam().dialect);
    std::string_view rest = stream;
    for (const Message& message : wanted[client]) {
      ASSERT_EQ(reader.read(rest), Status::ok) << message.step->where;
      EXPECT_EQ(rest.substr(0, reader.size()), message.step->bytes);
      rest.remove_prefix(reader.size());
    }
    EXPECT_TRUE(rest.empty());
  }
}

TEST_P(GoldenTest, EveryChangeOfOneByteIsReadWithoutHarm) {
  for (const Message& message : messages_of(GetParam())) {
    for (std::size_t place = 0; place < message.step->bytes.size(); ++place) {
      for (int byte = 0; byte < 256; ++byte) {
        std::string bytes = message.step->bytes;
        bytes[place] = static_cast<char>(byte);
        AnyReader reader(message);
        if (reader.read(bytes) != Status::ok) continue;
        ASSERT_LE(reader.size(), bytes.size());
        if (message.step->kind != Step::Kind::request) continue;
        RequestReader request({}, message.dialect);
        ASSERT_EQ(request.read(bytes), Status::ok);
        std::string again;
        write_request(again, request.request(), message.dialect);
        ASSERT_EQ(again, bytes.substr(0, request.size())) << message.step->where;
      }
    }
  }
}

TEST(Golden, HasEveryOperationOfEveryDialect) {
  std::set<std::pair<Dialect, Op>> requests;
  std::set<std::pair<Dialect, Op>> replies;
  for (const Conversation& conversation : golden::conversations()) {
    for (const Step& step : conversation.steps) {
      if (step.kind == Step::Kind::request) requests.insert({conversation.dialect, step.op});
      if (step.kind == Step::Kind::reply) replies.insert({conversation.dialect, step.op});
    }
  }
  for (const auto dialect : {Dialect::current, Dialect::legacy, Dialect::lockstep}) {
    for (int code = 0; code < 256; ++code) {
      const auto op = op_from_code(static_cast<std::uint8_t>(code), dialect);
      // Lockstep's clients have PyTorch's operations with the same bytes, which the current dialect has shown.
      if (!op || (dialect == Dialect::lockstep && code < 0x80)) continue;
      EXPECT_TRUE(requests.contains({dialect, *op})) << name_of(dialect) << " " << shape_of(*op).name;
      EXPECT_EQ(replies.contains({dialect, *op}), !shape_of(*op).reply.empty())
          << name_of(dialect) << " " << shape_of(*op).name;
    }
  }
}

// The bytes in the code blocks of PROTOCOL.md: "NAME > 01 02   comment", and lines of bytes below it.
std::vector<std::string> bytes_on_the_page() {
  std::ifstream in(LOCKSTEP_SOURCE_FOLDER "/proto/PROTOCOL.md");
  std::vector<std::string> found;
  bool code = false;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("```")) code = !code;
    if (!code || line.starts_with("```")) continue;
    std::istringstream words(line);
    bool bytes = line.starts_with(" ");  // Goes on with the bytes of the line above, unless an arrow comes first.
    for (std::string word; words >> word;) {
      const bool is_byte = word.size() == 2 && word.find_first_not_of("0123456789abcdef") == std::string::npos;
      if (word == ">" || word == "<") {
        bytes = true;
        found.emplace_back();
      } else if (bytes && is_byte && !found.empty()) {
        found.back().push_back(static_cast<char>(std::stoi(word, nullptr, 16)));
      } else if (bytes) {
        break;
      }
    }
  }
  return found;
}

TEST(Golden, EveryExampleOfThePageIsInTheTranscripts) {
  std::set<std::string> known;
  for (const Conversation& conversation : golden::conversations()) {
    for (const Step& step : conversation.steps) known.insert(step.bytes);
  }
  const std::vector<std::string> examples = bytes_on_the_page();
  EXPECT_GT(examples.size(), 30u);
  for (const std::string& example : examples) {
    EXPECT_TRUE(known.contains(example)) << ::testing::PrintToString(example);
  }
}

TEST(GoldenReader, RefusesWhatItDoesNotUnderstand) {
  const auto contents = [](const std::string& line) {
    return contents_of(golden::parse("f.txt", "dialect current\nconversation x\n" + line + "\n")[0].steps[0]);
  };
  for (const char* line : {"a > NONE", "a < raw", "a sleeps", "a > raw\n    0", "a > GET \"k\"", "a > GET keys \"k"}) {
    EXPECT_THROW(contents(line), std::runtime_error) << line;
  }
  EXPECT_THROW(golden::parse("f.txt", "conversation x\n"), std::runtime_error);
  EXPECT_THROW(golden::parse("f.txt", "    00\n"), std::runtime_error);
  EXPECT_EQ(contents("a > GET keys \"\\x00k\"").keys, std::vector<std::string>{std::string("\0k", 2)});
}

}  // namespace
}  // namespace lockstep::proto::golden_test
