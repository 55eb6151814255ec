// SPDX-License-Identifier: Apache-2.0
// Transcripts of the store's protocol: what clients and a server say to each other, byte for byte.
//
// They are the *.txt of this folder; the head of each says how to read it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "proto/fields.h"
#include "proto/protocol.h"

namespace lockstep::golden {

struct Step {
  enum class Kind {
    request,
    raw,  // bytes from the client that are no request
    reply,
    frame,
    event,
    silent,
    closed,
    deadline,
  };
  Kind kind;
  char client;           // 'a', 'b', ...
  proto::Op op;          // of a request or reply
  std::string contents;  // the rest of its line, for messages and contents_of()
  std::string bytes;
  std::string where;  // "current.txt:12"

  bool from_client() const { return kind == Kind::request || kind == Kind::raw; }
  bool from_server() const { return kind == Kind::reply || kind == Kind::frame || kind == Kind::event; }
};

struct Conversation {
  std::string name;  // "current: set and get"
  proto::Dialect dialect;
  bool replayable;  // `conversation`; false for an `exchange`
  std::vector<Step> steps;
};

// What a message holds, with the memory that its views are into.
struct OwnedContents {
  std::vector<std::string> keys;
  std::vector<std::string> values;
  std::int64_t number = 0;

  proto::Contents view() const;
};
OwnedContents contents_of(const Step& step);

// All of them, read once. Throws std::runtime_error, with file and line, for what can't be read.
const std::vector<Conversation>& conversations();
// For the tests of the reader.
std::vector<Conversation> parse(std::string_view file, std::string_view text);

// "set and get" as a test's name: "current_set_and_get".
std::string test_name(const Conversation& conversation);

}  // namespace lockstep::golden
