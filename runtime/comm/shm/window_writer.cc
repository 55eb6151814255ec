// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/shm/window_writer.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "runtime/comm/transfer.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace lockstep::shm {
namespace {

// Copies from one trial of the same stores to the next. Even, so that where copies of two kinds take turns (from the
// user's memory, of a result that is in cache) both stores are tried with one kind.
constexpr std::uint32_t kTrialEvery = 128;
// The bytes of a trial, of little and of much: with little the first line's way to memory counts, which is the same for
// much. They are few, since one kind of stores may be seven times slower.
constexpr std::size_t kLittle = 1024;
constexpr std::size_t kMuch = 8192;
// Lines are asked for so many bytes ahead of the stores.
constexpr std::size_t kBlockBytes = 4096;
// A cost follows its trials by this factor at most, up or down: an interrupt, or a line that nobody had, moves it
// little.
constexpr double kMostChange = 1.25;
// How many times longer ordinary stores must take, to make up for what streaming costs those who read.
constexpr double kWorthStreaming = 1.5;

void stream(std::byte* to, const std::byte* from, std::size_t bytes) {
  std::size_t done = 0;
#if defined(__x86_64__)
  // Whole lines; what lies before and behind them takes ordinary stores.
  done = std::min(bytes, (64 - reinterpret_cast<std::uintptr_t>(to) % 64) % 64);
  comm::copy_bytes(to, from, done);
  for (; done + 64 <= bytes; done += 64) {
    __m128i line[4];
    for (std::size_t i = 0; i < 4; ++i) line[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + done) + i);
    for (std::size_t i = 0; i < 4; ++i) _mm_stream_si128(reinterpret_cast<__m128i*>(to + done) + i, line[i]);
  }
  _mm_sfence();  // else the word that is posted next may overtake them
#endif
  comm::copy_bytes(to + done, from + done, bytes - done);
}

}  // namespace

std::optional<Stores> StoreChoice::trial() {
  const std::uint32_t turn = copies_++ % kTrialEvery;
  if (turn == 0) return Stores::ordinary;
  if (turn == kTrialEvery / 2) return Stores::streaming;
  return std::nullopt;
}

void StoreChoice::note(Stores stores, double seconds) {
  double& cost = cost_[static_cast<std::size_t>(stores)];
  cost = cost == 0 ? seconds : std::clamp(seconds, cost / kMostChange, cost * kMostChange);
  best_ = cost_[1] > 0 && cost_[0] > kWorthStreaming * cost_[1] ? Stores::streaming : Stores::ordinary;
}

void WindowWriter::copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  StoreChoice& choice = bytes < kMuch ? little_ : much_;
  const std::size_t tried = bytes < kMuch ? kLittle : kMuch;
  if (bytes >= tried) {
    if (const auto stores = choice.trial()) {
      const auto start = std::chrono::steady_clock::now();
      copy_by(*stores, to, from, tried);
      std::atomic_thread_fence(std::memory_order_seq_cst);  // ordinary stores wait for their lines behind the program
      choice.note(*stores, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
      to += tried;
      from += tried;
      bytes -= tried;
    }
  }
  copy_by(choice.best(), to, from, bytes);
}

void prefetch_for_write([[maybe_unused]] std::byte* begin, [[maybe_unused]] std::size_t bytes) {
#if defined(__x86_64__)
  // In assembly, since g++ and clang turn __builtin_prefetch(p, 1) into prefetcht0 unless the build demands prfchw.
  // prefetcht0 asks for a copy that others may keep; the store would then have to take the line from them once more.
  for (std::size_t i = 0; i < bytes; i += 64) asm volatile("prefetchw %0" : : "m"(begin[i]));
#endif
}

void copy_by(Stores stores, std::byte* to, const std::byte* from, std::size_t bytes) {
  if (stores == Stores::streaming) return stream(to, from, bytes);
  for (std::size_t done = 0; done < bytes; done += kBlockBytes) {
    const std::size_t block = std::min(kBlockBytes, bytes - done);
    // Block by block: asked for all at once, the first lines may have left the core's own cache before the stores come.
    prefetch_for_write(to + done, block);
    comm::copy_bytes(to + done, from + done, block);
  }
}

}  // namespace lockstep::shm
