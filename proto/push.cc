// SPDX-License-Identifier: Apache-2.0
#include "proto/push.h"

namespace lockstep::proto {
namespace {

constexpr Field kFramePush[] = {Field::status, Field::list};
constexpr Field kWatchEvent[] = {Field::u8, Field::key, Field::value, Field::value};

std::span<const Field> fields_of(PushFormat format) {
  if (format == PushFormat::frame) return kFramePush;
  return kWatchEvent;
}

}  // namespace

void write_push(std::string& out, PushFormat format, const Contents& contents) {
  write_fields(out, fields_of(format), contents);
}

PushReader::PushReader(PushFormat format, const Limits& limits) : format_(format), limits_(limits) {}

Status PushReader::read(std::string_view input) {
  if (!started_) {
    fields_.start(fields_of(format_), 0);
    started_ = true;
  }
  const Status status = fields_.read(input, limits_);
  if (status != Status::need_more) started_ = false;
  if (status == Status::ok) fields_.contents(input, contents_);
  return status;
}

std::string PushReader::reason() const {
  return (format_ == PushFormat::frame ? "frame: " : "event of a watched key: ") + fields_.reason();
}

}  // namespace lockstep::proto
