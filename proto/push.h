// SPDX-License-Identifier: Apache-2.0
// What a server sends unasked: to a member, and to a legacy client that watches a key.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "proto/fields.h"
#include "proto/protocol.h"

namespace lockstep::proto {

enum class PushFormat {
  // A frame: `number` is kPush..., `values` its list. Replies to operations of lockstep's own are frames too, so a
  // member reads its connection as frames and tells replies and pushes by their number.
  frame,
  // `number` is kKey..., then the key, and its value before and after.
  watch_event,
};

// Appends the push to `out`.
void write_push(std::string& out, PushFormat format, const Contents& contents);

// Reads one push. Never throws on what it reads.
class PushReader {
 public:
  explicit PushReader(PushFormat format, const Limits& limits = {});

  // As ReplyReader::read(). After ok it is ready for the next.
  Status read(std::string_view input);

  const Contents& contents() const { return contents_; }
  std::size_t size() const { return fields_.end(); }
  // After malformed.
  std::string reason() const;

 private:
  PushFormat format_;
  Limits limits_;
  FieldReader fields_;
  Contents contents_;
  bool started_ = false;
};

}  // namespace lockstep::proto
