// SPDX-License-Identifier: Apache-2.0
// What the fuzz targets share: input that arrives in pieces, and a check that stops the program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>

// What libFuzzer, and replay.cc, call with each input. Returns 0; a finding ends the process.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace lockstep::fuzz {

// Not assert(): also in a build without it.
inline void check(bool good, const char* what) {
  if (good) return;
  std::fprintf(stderr, "fuzz: does not hold: %s\n", what);
  std::abort();
}

// Takes an input apart: first numbers that choose, then bytes.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : rest_(reinterpret_cast<const char*>(data), size) {}

  bool empty() const { return rest_.empty(); }
  // 0 where the input has ended.
  std::uint8_t byte() {
    if (rest_.empty()) return 0;
    const auto value = static_cast<std::uint8_t>(rest_.front());
    rest_.remove_prefix(1);
    return value;
  }
  std::string_view bytes(std::size_t most) {
    const std::string_view taken = rest_.substr(0, most);
    rest_.remove_prefix(taken.size());
    return taken;
  }
  std::string_view rest() { return bytes(rest_.size()); }

 private:
  std::string_view rest_;
};

// A copy in memory of exactly its size, so that AddressSanitizer sees the first byte read behind it, or after its time.
class Copy {
 public:
  explicit Copy(std::string_view bytes) : memory_(new char[bytes.size()]), size_(bytes.size()) {
    if (!bytes.empty()) std::memcpy(memory_.get(), bytes.data(), bytes.size());
  }
  std::string_view view() const { return {memory_.get(), size_}; }

 private:
  std::unique_ptr<char[]> memory_;
  std::size_t size_;
};

}  // namespace lockstep::fuzz
