// SPDX-License-Identifier: Apache-2.0
#include "proto/reply.h"

namespace lockstep::proto {

void write_reply(std::string& out, Op op, const Contents& contents) { write_fields(out, shape_of(op).reply, contents); }

ReplyReader::ReplyReader(Op op, std::size_t keys, const Limits& limits) : op_(op), limits_(limits) {
  fields_.start(shape_of(op).reply, 0, keys);
}

Status ReplyReader::read(std::string_view input) {
  const Status status = fields_.read(input, limits_);
  if (status == Status::ok) fields_.contents(input, contents_);
  return status;
}

std::string ReplyReader::reason() const {
  return "reply to " + std::string(shape_of(op_).name) + ": " + fields_.reason();
}

}  // namespace lockstep::proto
