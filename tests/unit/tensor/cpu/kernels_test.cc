// SPDX-License-Identifier: Apache-2.0
#include "runtime/tensor/kernels.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <array>
#include <bit>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/intra_op_threads.h"
#include "lockstep/base/random.h"
#include "runtime/tensor/cpu/cpu_kernels.h"

// What finite differences do not see: products against a plain loop, the draws of dropout, memory.
namespace lockstep::kernels_test {
namespace {

Kernels& k = cpu_kernels();

std::vector<float> random_values(std::int64_t count, std::uint64_t stream) {
  Generator generator(3, stream);
  std::vector<float> result(static_cast<std::size_t>(count));
  for (float& value : result) value = 2 * generator.uniform() - 1;
  return result;
}

void expect_gemm(bool ta, bool tb, std::int64_t m, std::int64_t n, std::int64_t kk, std::int64_t gap, bool add) {
  const std::int64_t lda = (ta ? m : kk) + gap, ldb = (tb ? kk : n) + gap, ldc = n + gap;
  const std::vector<float> a = random_values((ta ? kk : m) * lda, 1), b = random_values((tb ? n : kk) * ldb, 2);
  const std::vector<float> before = random_values(m * ldc, 3);
  std::vector<float> c = before;
  k.gemm({.rows = m,
          .columns = n,
          .inner = kk,
          .alpha = 0.5f,
          .a = {.data = a.data(), .stride = lda, .transposed = ta},
          .b = {.data = b.data(), .stride = ldb, .transposed = tb},
          .c = {c.data(), add},
          .ldc = ldc});
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < ldc; ++j) {
      const auto at = static_cast<std::size_t>(i * ldc + j);
      double wanted = j < n && !add ? 0 : static_cast<double>(before[at]);
      for (std::int64_t p = 0; p < kk && j < n; ++p) {
        wanted += 0.5 * static_cast<double>(a[static_cast<std::size_t>(ta ? p * lda + i : i * lda + p)]) *
                  static_cast<double>(b[static_cast<std::size_t>(tb ? j * ldb + p : p * ldb + j)]);
      }
      ASSERT_NEAR(c[at], wanted, 1e-5 * (1 + static_cast<double>(kk)))
          << m << " " << n << " " << kk << " at " << i << " " << j;
    }
  }
}

TEST(Gemm, EqualsAPlainLoop) {
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      for (const bool add : {false, true}) {
        for (const std::array<std::int64_t, 3>& s : {std::array<std::int64_t, 3>{1, 1, 1},
                                                     {0, 3, 2},
                                                     {3, 0, 2},
                                                     {3, 2, 0},
                                                     {5, 2, 5},
                                                     {17, 33, 9},
                                                     {64, 48, 70}}) {
          expect_gemm(ta, tb, s[0], s[1], s[2], 0, add);
          expect_gemm(ta, tb, s[0], s[1], s[2], 3, add);
        }
      }
    }
  }
}

// oneDNN's kernels use the stack pointer as they like, so no handler may run on top of one: not on the thread that
// multiplies, and not on those that OpenMP has started for it.
TEST(Gemm, RunsWhereNoHandlerUsesItsStack) {
  const auto threads = [] {
    std::set<std::string> found;
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) found.insert(task.path());
    return found;
  };
  const int usual = intra_op_threads();
  set_intra_op_threads(3);
  std::thread([&] {
    const auto before = threads();
    expect_gemm(false, false, 200, 150, 300, 0, false);
    stack_t stack{};
    ASSERT_EQ(sigaltstack(nullptr, &stack), 0);
    EXPECT_EQ(stack.ss_flags & SS_DISABLE, 0);
    sigset_t mask;
    ASSERT_EQ(pthread_sigmask(SIG_SETMASK, nullptr, &mask), 0);
    EXPECT_EQ(sigismember(&mask, SIGTERM), 0) << "the program's own thread takes signals as before";
    for (const std::string& thread : threads()) {
      if (before.contains(thread)) continue;
      std::ifstream status(thread + "/status");
      std::string word, blocked;
      while (status >> word && word != "SigBlk:") {
      }
      status >> blocked;
      EXPECT_NE(std::stoull(blocked, nullptr, 16) >> (SIGTERM - 1) & 1, 0u) << thread;
    }
  }).join();
  set_intra_op_threads(usual);
}

TEST(Kernels, DropoutDrawsFromPhilox) {
  // By hand from base/random.h: element 64 g + 16 lane + j is word `lane` of block 16 g + j, its counter {block, 0,
  // id}. The key is found by trying: all that is claimed is that one key explains every element.
  const std::int64_t elements = 200, id = 5;
  std::vector<float> x(200, 1), y(200);
  std::vector<std::uint8_t> mask(200);
  const RandomKey key{.seed = 1, .layer = 2, .step = 3};
  k.dropout(y.data(), mask.data(), x.data(), key, &id, 1, elements, 0.5f);
  const auto mix = [](std::uint64_t v) {
    v = (v ^ (v >> 30)) * 0xBF58476D1CE4E5B9ull;
    v = (v ^ (v >> 27)) * 0x94D049BB133111EBull;
    return v ^ (v >> 31);
  };
  const std::uint64_t bits = mix(mix(mix(key.seed + 0x9E3779B97F4A7C15ull) + key.layer) + key.step);
  for (std::uint32_t e = 0; e < 200; ++e) {
    const std::uint32_t block = e / 64 * 16 + e % 16, lane = e % 64 / 16;
    const auto words =
        philox({block, 0, 5, 0}, {static_cast<std::uint32_t>(bits), static_cast<std::uint32_t>(bits >> 32)});
    ASSERT_EQ(mask[e], words[lane] < 0x80000000u ? 1 : 0) << e;
  }
}

TEST(Allocator, AlignsAndReusesAndStandsThreadsThatEnd) {
  for (std::size_t bytes : {1u, 63u, 64u, 65u, 4095u, 4097u, 1u << 20, (1u << 20) + 1}) {
    void* block = cpu::allocate(bytes);
    EXPECT_EQ(std::bit_cast<std::uintptr_t>(block) % 64, 0u) << bytes;
    std::fill_n(static_cast<char*>(block), bytes, 'x');
    cpu::release(block, bytes);
  }
  void* here = cpu::allocate(1000);
  std::thread([&] {
    cpu::release(here, 1000);
    cpu::release(cpu::allocate(1000), 1000);
  }).join();
}

TEST(Allocator, DoesNotPileUpWhatOtherThreadsMade) {
  constexpr std::size_t kBytes = 100000;
  cpu::release(cpu::allocate(kBytes), kBytes);
  const std::size_t one = cpu::cached_bytes();
  for (int round = 0; round < 100; ++round) {
    void* made = nullptr;
    std::thread([&] { made = cpu::allocate(kBytes); }).join();
    cpu::release(made, kBytes);
  }
  EXPECT_EQ(cpu::cached_bytes(), one);

  // What this thread had in use at once, it may keep.
  std::array<void*, 4> blocks{};
  for (void*& block : blocks) block = cpu::allocate(kBytes);
  for (void* block : blocks) cpu::release(block, kBytes);
  EXPECT_GE(cpu::cached_bytes(), one);
  EXPECT_LE(cpu::cached_bytes(), 4 * 5 * kBytes / 4 + one);
}

}  // namespace
}  // namespace lockstep::kernels_test
