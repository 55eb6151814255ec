// SPDX-License-Identifier: Apache-2.0
// Replies, from server to client. A reply doesn't say what it answers: the client must know, and ask one thing at a
// time.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "proto/fields.h"
#include "proto/protocol.h"

namespace lockstep::proto {

// Appends the reply to a request of `op` to `out`: nothing if `op` isn't answered.
void write_reply(std::string& out, Op op, const Contents& contents);

// Reads the reply to one request. Never throws on what it reads.
class ReplyReader {
 public:
  // `keys` is how many keys the request had; only MULTI_GET's reply needs it.
  explicit ReplyReader(Op op, std::size_t keys = 0, const Limits& limits = {});

  // `input` begins with the reply's first byte; after need_more call again with the same bytes and more behind them.
  // After ok: contents(), valid as long as the bytes of `input`, and size().
  Status read(std::string_view input);

  const Contents& contents() const { return contents_; }
  std::size_t size() const { return fields_.end(); }
  // After malformed.
  std::string reason() const;

 private:
  Op op_;
  Limits limits_;
  FieldReader fields_;
  Contents contents_;
};

}  // namespace lockstep::proto
