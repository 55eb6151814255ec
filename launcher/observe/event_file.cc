// SPDX-License-Identifier: Apache-2.0
#include "launcher/observe/event_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstddef>
#include <system_error>
#include <utility>

#include "launcher/base/system.h"
#include "lockstep/base/error.h"

namespace lockstep::launcher {
namespace {

constexpr std::array<std::uint32_t, 256> make_crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? 0x82f6'3b78u : 0u);
    table[i] = value;
  }
  return table;
}
constexpr auto kCrcTable = make_crc_table();

// Appends a number in little-endian order.
template <typename Number>
std::string bytes_of_number(Number number) {
  std::string bytes;
  for (std::size_t i = 0; i < sizeof number; ++i) bytes += static_cast<char>(number >> (8 * i) & 0xff);
  return bytes;
}

std::string varint(std::uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>((value & 0x7f) | 0x80);
  return bytes + static_cast<char>(value);
}

// The fields of a message in protobuf's wire types.
std::string integer_field(std::uint64_t number, std::uint64_t value) { return varint(number << 3) + varint(value); }
std::string double_field(std::uint64_t number, double value) {
  return varint(number << 3 | 1) + bytes_of_number(std::bit_cast<std::uint64_t>(value));
}
std::string float_field(std::uint64_t number, float value) {
  return varint(number << 3 | 5) + bytes_of_number(std::bit_cast<std::uint32_t>(value));
}
std::string text_field(std::uint64_t number, std::string_view text) {
  return varint(number << 3 | 2) + varint(text.size()) + std::string(text);
}

std::string record_of(const std::string& message) {
  const auto masked = [](std::string_view bytes) {
    const std::uint32_t crc = crc32c(bytes);
    return bytes_of_number<std::uint32_t>((crc >> 15 | crc << 17) + 0xa282'ead8u);
  };
  const std::string length = bytes_of_number<std::uint64_t>(message.size());
  return length + masked(length) + message + masked(message);
}

class EventWriter {
 public:
  explicit EventWriter(double wall_time) {
    constexpr std::uint64_t kStart = 1;  // SessionLog.status
    text_ = record_of(double_field(1, wall_time) + text_field(3, "brain.Event:2")) +
            record_of(double_field(1, wall_time) + text_field(7, integer_field(1, kStart)));
  }
  void scalar(const std::string& tag, std::int64_t step, double wall_time, double value) {
    const std::string entry = text_field(1, tag) + float_field(2, static_cast<float>(value));
    text_ += record_of(double_field(1, wall_time) + integer_field(2, static_cast<std::uint64_t>(step)) +
                       text_field(5, text_field(1, entry)));
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

double seconds_of(std::int64_t ns) { return static_cast<double>(ns) * 1e-9; }

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t crc = ~0u;
  for (const char byte : bytes) crc = kCrcTable[(crc ^ static_cast<unsigned char>(byte)) & 0xff] ^ (crc >> 8);
  return ~crc;
}

std::string as_event_file(const RunReport& report) {
  EventWriter writer(seconds_of(report.began));
  for (const auto& [name, curve] : report.scalars) {
    for (const auto& [step, scalar] : curve) writer.scalar(name, step, seconds_of(scalar.time), scalar.value);
  }
  for (const ReportedStart& start : report.starts) {
    for (const RankTable& table : start.ranks) {
      for (const StepRow& row : table.rows) {
        const std::int64_t step = table.done(row);
        if (step > start.until) break;
        const double time = seconds_of(row.end + table.wall_clock);
        writer.scalar(fmt::format("own ms/rank {}", table.rank), step, time, 1e3 * seconds_of(row.own()));
        writer.scalar(fmt::format("waited ms/rank {}", table.rank), step, time, 1e3 * seconds_of(row[Phase::waited]));
      }
    }
  }
  return writer.take();
}

void write_event_file(const std::filesystem::path& folder, const RunReport& report) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw SystemError("make the folder " + folder.native(), error.value());
  const auto now = std::chrono::system_clock::now();
  const auto name_at = [](auto time) {
    const auto since = std::chrono::duration_cast<std::chrono::microseconds>(time.time_since_epoch());
    return fmt::format("events.out.tfevents.{}.lockstep", since.count());
  };
  write_file((folder / name_at(now)).native(), as_event_file(report));
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string other = entry.path().filename().native();
    if (!other.starts_with("events.out.tfevents.") || !other.ends_with(".lockstep") || other >= name_at(now)) continue;
    if (other < name_at(now - std::chrono::hours(1))) {
      fs::remove(entry.path(), error);
    } else {
      fs::resize_file(entry.path(), 0, error);
    }
  }
}

}  // namespace lockstep::launcher
