// SPDX-License-Identifier: Apache-2.0
#include "proto/fields.h"

#include <cassert>

namespace lockstep::proto {
namespace {

constexpr std::size_t kLengthBytes = 8;

void put_number(std::string& out, std::uint64_t number, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) out.push_back(static_cast<char>(number >> (8 * i) & 0xff));
}

void put_slice(std::string& out, std::string_view bytes) {
  put_number(out, bytes.size(), kLengthBytes);
  out.append(bytes);
}

// Empties `list`, and gives its memory back if it has grown far beyond what most messages need.
template <typename T>
void empty(std::vector<T>& list) {
  constexpr std::size_t kKept = 1024;
  if (list.capacity() > kKept) {
    list = {};
  } else {
    list.clear();
  }
}

std::string too_many(std::string_view what, std::uint64_t seen, std::size_t limit) {
  return std::string(what) + std::to_string(seen) + ", the limit is " + std::to_string(limit);
}

}  // namespace

void write_fields(std::string& out, std::span<const Field> fields, const Contents& contents) {
  auto key = contents.keys.begin();
  auto value = contents.values.begin();
  const auto number = static_cast<std::uint64_t>(contents.number);
  for (const Field field : fields) {
    switch (field) {
      case Field::u8: put_number(out, number, 1); break;
      case Field::u32: put_number(out, number, 4); break;
      case Field::i64: put_number(out, number, 8); break;
      case Field::key:
        assert(key != contents.keys.end());
        put_slice(out, *key++);
        break;
      case Field::value:
        assert(value != contents.values.end());
        put_slice(out, *value++);
        break;
      case Field::keys:
        put_number(out, contents.keys.size(), kLengthBytes);
        while (key != contents.keys.end()) put_slice(out, *key++);
        break;
      case Field::pairs:
        assert(contents.keys.size() == contents.values.size());
        put_number(out, contents.keys.size(), kLengthBytes);
        while (key != contents.keys.end()) {
          put_slice(out, *key++);
          put_slice(out, *value++);
        }
        break;
      case Field::values:
        while (value != contents.values.end()) put_slice(out, *value++);
        break;
      case Field::item:
        put_number(out, number, 8);
        if (contents.number > 0) {
          assert(value != contents.values.end());
          put_slice(out, *value++);
        }
        break;
      case Field::names:
        put_number(out, contents.keys.size(), kLengthBytes);
        while (key != contents.keys.end()) put_slice(out, *key++);
        break;
      case Field::status:
        put_number(out, number, 1);
        if (contents.number == kCancelled) return;
        break;
      case Field::list:
        put_number(out, contents.values.size(), kLengthBytes);
        while (value != contents.values.end()) put_slice(out, *value++);
        break;
    }
  }
}

void FieldReader::start(std::span<const Field> fields, std::size_t offset, std::size_t expected_values) {
  fields_ = fields;
  expected_values_ = expected_values;
  offset_ = offset;
  counted_ = false;
  slices_left_ = 0;
  empty(keys_);
  empty(values_);
  number_ = 0;
  reason_.clear();
}

Status FieldReader::read(std::string_view input, const Limits& limits) {
  while (!fields_.empty()) {
    const Status status = read_field(fields_.front(), input, limits);
    if (status != Status::ok) return status;
    fields_ = fields_.subspan(1);
  }
  return Status::ok;
}

Status FieldReader::read_field(Field field, std::string_view input, const Limits& limits) {
  switch (field) {
    case Field::u8: return read_number(1, input, number_);
    case Field::u32: return read_number(4, input, number_);
    case Field::i64: return read_number(8, input, number_);
    case Field::key:
    case Field::value: return read_slice(field, input, limits);
    case Field::status: return read_status(input);
    case Field::keys:
    case Field::pairs:
    case Field::values:
    case Field::item:
    case Field::names:
    case Field::list: return read_repeated(field, input, limits);
  }
  return fail("unknown field");
}

Status FieldReader::read_status(std::string_view input) {
  const Status status = read_number(1, input, number_);
  // One field is left for read() to take off.
  if (status == Status::ok && number_ == kCancelled) fields_ = fields_.first(1);
  return status;
}

Status FieldReader::read_repeated(Field field, std::string_view input, const Limits& limits) {
  if (!counted_) {
    const Status status = read_count(field, input, limits);
    if (status != Status::ok) return status;
    counted_ = true;
  }
  while (slices_left_ > 0) {
    const bool is_key =
        field == Field::keys || field == Field::names || (field == Field::pairs && slices_left_ % 2 == 0);
    const Status status = read_slice(is_key ? Field::key : Field::value, input, limits);
    if (status != Status::ok) return status;
    --slices_left_;
  }
  counted_ = false;
  return Status::ok;
}

// Reads what stands before a repeated field and sets how many keys and values it has.
Status FieldReader::read_count(Field field, std::string_view input, const Limits& limits) {
  if (field == Field::values) {
    slices_left_ = expected_values_;
    return Status::ok;
  }
  std::uint64_t count = 0;
  const Status status = read_number(kLengthBytes, input, count);
  if (status != Status::ok) return status;
  if (field == Field::item) {
    number_ = count;
    slices_left_ = static_cast<std::int64_t>(count) > 0 ? 1 : 0;
    return Status::ok;
  }
  const bool is_list = field == Field::list || field == Field::names;
  const std::size_t limit = is_list ? limits.max_list_items : limits.max_count;
  if (count > limit) return fail(too_many(is_list ? "number of items is " : "number of keys is ", count, limit));
  slices_left_ = field == Field::pairs ? 2 * count : count;
  return Status::ok;
}

Status FieldReader::read_number(std::size_t bytes, std::string_view input, std::uint64_t& out) {
  if (input.size() - offset_ < bytes) return Status::need_more;
  out = 0;
  for (std::size_t i = 0; i < bytes; ++i) {
    out |= static_cast<std::uint64_t>(static_cast<unsigned char>(input[offset_ + i])) << (8 * i);
  }
  offset_ += bytes;
  return Status::ok;
}

Status FieldReader::read_slice(Field kind, std::string_view input, const Limits& limits) {
  const std::size_t start = offset_;
  std::uint64_t size = 0;
  if (read_number(kLengthBytes, input, size) != Status::ok) return Status::need_more;
  const std::size_t limit = kind == Field::key ? limits.max_key_bytes : limits.max_value_bytes;
  if (size > limit) {
    return fail(too_many(kind == Field::key ? "bytes in a key: " : "bytes in a value: ", size, limit));
  }
  if (offset_ + size > limits.max_message_bytes) {
    return fail(too_many("bytes in a message: at least ", offset_ + size, limits.max_message_bytes));
  }
  if (input.size() - offset_ < size) {
    offset_ = start;  // The next call reads these eight bytes again; nothing else is read twice.
    return Status::need_more;
  }
  (kind == Field::key ? keys_ : values_).push_back({offset_, static_cast<std::size_t>(size)});
  offset_ += size;
  return Status::ok;
}

Status FieldReader::fail(std::string reason) {
  reason_ = std::move(reason);
  return Status::malformed;
}

void FieldReader::contents(std::string_view input, Contents& out) const {
  empty(out.keys);
  empty(out.values);
  for (const Slice& slice : keys_) out.keys.push_back(input.substr(slice.offset, slice.size));
  for (const Slice& slice : values_) out.values.push_back(input.substr(slice.offset, slice.size));
  out.number = static_cast<std::int64_t>(number_);
}

}  // namespace lockstep::proto
