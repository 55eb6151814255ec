// SPDX-License-Identifier: Apache-2.0
#include "runtime/device/cpu_runtime.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>

#include "lockstep/base/error.h"
#include "runtime/device/convert.h"
#include "runtime/device/divide.h"
#include "runtime/device/not_finite.h"
#include "runtime/device/sum_rows.h"

namespace lockstep {
namespace {

constexpr std::size_t kAlignment = 256;

using Clock = std::chrono::steady_clock;

// Another thread may look at an event while it is recorded again.
struct CpuEvent {
  explicit CpuEvent(bool with_time) : timed(with_time) {}
  const bool timed;
  std::atomic<Clock::rep> at{0};  // 0: never recorded
};

void require_default(StreamView stream, const char* operation) {
  if (stream.device.kind == DeviceKind::cpu && stream.handle == nullptr) return;
  throw InvalidArgument(fmt::format(
      "{}: a stream of {} was given to the CPU, which has only its default stream; give the CPU's default stream",
      operation, stream.device.str()));
}

class CpuRuntime final : public DeviceRuntime {
 public:
  DeviceKind kind() const override { return DeviceKind::cpu; }
  int count() override { return 1; }
  std::string why_none() override { return {}; }

  DeviceInfo info(DeviceId) override {
    DeviceInfo info;
    info.name = "CPU";
    info.memory_bytes = pages(_SC_PHYS_PAGES);
    return info;
  }

  std::shared_ptr<void> allocate(std::size_t bytes, StreamView stream) override {
    require_default(stream, "allocate");
    return take(bytes);
  }
  std::shared_ptr<void> allocate_pinned(std::size_t bytes, DeviceId) override { return take(bytes); }
  DeviceMemory memory(DeviceId) override {
    DeviceMemory memory;
    memory.free_bytes = pages(_SC_AVPHYS_PAGES);
    memory.total_bytes = pages(_SC_PHYS_PAGES);
    memory.used_bytes = used_.load(std::memory_order_relaxed);
    memory.peak_bytes = peak_.load(std::memory_order_relaxed);
    return memory;
  }
  DeviceCounters counters() const override { return {.reserved_bytes = peak_.load(std::memory_order_relaxed)}; }

  std::shared_ptr<void> create_stream(DeviceId, Stream::Priority) override { return nullptr; }
  void synchronize(StreamView stream, const Deadline&) override { require_default(stream, "synchronize"); }

  std::shared_ptr<void> create_event(DeviceId, bool timed) override { return std::make_shared<CpuEvent>(timed); }
  void record(void* event, StreamView stream) override {
    require_default(stream, "record");
    static_cast<CpuEvent*>(event)->at.store(Clock::now().time_since_epoch().count(), std::memory_order_release);
  }
  void block(StreamView stream, void*) override { require_default(stream, "block"); }
  bool reached(void*) override { return true; }
  void check_not_captured(std::string_view, StreamView) override {}
  void synchronize(void*, const Deadline&) override {}
  std::chrono::nanoseconds elapsed(void* earlier, void* later) override {
    return Clock::duration(time_of(later) - time_of(earlier));
  }

  DeviceId place_of(const void*, DeviceId) override { return {}; }

  void copy(void* to, const void* from, std::size_t bytes, StreamView stream) override {
    require_default(stream, "copy");
    if (bytes > 0) std::memmove(to, from, bytes);
  }
  void zero(void* data, std::size_t bytes, StreamView stream) override {
    require_default(stream, "zero");
    if (bytes > 0) std::memset(data, 0, bytes);
  }
  void divide(const BufferView& buffer, double factor, const std::int64_t* divisor, OverZero over_zero,
              StreamView stream) override {
    require_default(stream, "divide");
    divide_on_host(buffer.data, buffer.count, buffer.dtype, divisor == nullptr ? 1 : *divisor, over_zero, factor);
  }
  void first_not_finite(const BufferView& buffer, std::int64_t* first, StreamView stream) override {
    require_default(stream, "first_not_finite");
    *first = std::min(*first, first_not_finite_on_host(buffer.data, buffer.count, buffer.dtype));
  }
  void convert(const ConstBufferView& from, const BufferView& to, StreamView stream) override {
    require_default(stream, "convert");
    convert_on_host(from, to);
  }
  void sum_rows(const void* rows, std::ptrdiff_t stride, std::span<const std::uint8_t> merges, const BufferView& to,
                StreamView stream) override {
    require_default(stream, "sum_rows");
    sum_rows_on_host(rows, stride, merges, to);
  }
  void put(std::int64_t* to, std::int64_t value, StreamView stream) override {
    require_default(stream, "put");
    *to = value;
  }

 private:
  static std::size_t pages(int name) {
    const long count = ::sysconf(name);
    const long size = ::sysconf(_SC_PAGESIZE);
    return count < 0 || size < 0 ? 0 : static_cast<std::size_t>(count) * static_cast<std::size_t>(size);
  }

  static Clock::rep time_of(void* event) {
    const auto& mark = *static_cast<CpuEvent*>(event);
    const Clock::rep at = mark.at.load(std::memory_order_acquire);
    if (!mark.timed || at == 0) {
      throw InvalidArgument(fmt::format("event: the program asked for the time of an event that {}; {} first",
                                        at == 0 ? "was never recorded" : "was made without `timed`",
                                        at == 0 ? "record it" : "make the event with `timed`"));
    }
    return at;
  }

  std::shared_ptr<void> take(std::size_t bytes) {
    if (bytes == 0) return nullptr;
    void* const data = ::operator new(bytes, std::align_val_t(kAlignment), std::nothrow);
    if (data == nullptr) {
      throw DeviceError(
          fmt::format("allocate: no room for {} bytes of host memory; use a smaller batch or model, or a "
                      "host with more memory",
                      bytes));
    }
    const std::size_t now = used_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    for (std::size_t peak = peak_.load(std::memory_order_relaxed);
         peak < now && !peak_.compare_exchange_weak(peak, now, std::memory_order_relaxed);) {
    }
    return {data, [this, bytes](void* memory) {
              ::operator delete(memory, std::align_val_t(kAlignment));
              used_.fetch_sub(bytes, std::memory_order_relaxed);
            }};
  }

  std::atomic<std::size_t> used_{0};
  std::atomic<std::size_t> peak_{0};
};

}  // namespace

DeviceRuntime& cpu_runtime() {
  // Never destroyed: memory may go back after main() has ended.
  static auto* const runtime = new CpuRuntime;
  return *runtime;
}

}  // namespace lockstep
