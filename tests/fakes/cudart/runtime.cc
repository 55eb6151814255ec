// SPDX-License-Identifier: Apache-2.0
#include "tests/fakes/cudart/runtime.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <utility>

#include "tests/fakes/cudart/settings.h"
#include "tests/fakes/cudart/unseen.h"

namespace lockstep::fake_cuda {
namespace {

std::atomic<bool> made{false};

thread_local int current_device = 0;
thread_local bool has_context = false;
thread_local cudaError_t last_error = cudaSuccess;

// What has been reported already.
std::function<void()> hidden(std::function<void()> run) {
  return [run = std::move(run)] {
    const Unseen unseen;
    run();
  };
}

}  // namespace

Runtime& Runtime::get() {
  static auto* const runtime = new Runtime;
  return *runtime;
}

bool Runtime::exists() { return made.load(); }

Runtime::Runtime() {
  const Settings settings = settings_of_process();
  visible_ = settings.visible;
  none_ = settings.none;
  device_bytes_ = settings.device_bytes;
  seed_ = settings.seed;
  multiprocessors_ = settings.multiprocessors;
  rules_.add(settings.rules);
  made.store(true);
  fmt::print(stderr, "fake CUDA: LOCKSTEP_FAKE_SEED={}\n", seed_);
}

bool Runtime::begin(const char* function, cudaError_t& result) {
  std::unique_lock lock(mutex_);
  const Effect effect = rules_.count(function);
  if (effect.kind == Effect::Kind::wait) {
    const std::uint64_t before = times_healed_;
    healed_.wait(lock, [&] { return times_healed_ != before; });
  }
  result = static_cast<cudaError_t>(sticky_.load());
  if (result == cudaSuccess) result = none_;
  if (result != cudaSuccess) return false;
  if (effect.kind == Effect::Kind::error) result = effect.error;
  return effect.kind == Effect::Kind::none || effect.kind == Effect::Kind::wait;
}

cudaError_t Runtime::finish(cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
  return error;
}

int& Runtime::current() { return current_device; }

void Runtime::need_context() {
  thread_local int known = -1;
  const int device = physical(current_device);
  has_context = true;
  if (device == known) return;
  std::lock_guard lock(mutex_);
  with_context_.insert(device);
  known = device;
}

bool Runtime::thread_has_context() { return has_context; }

std::set<int> Runtime::devices_with_context() {
  std::lock_guard lock(mutex_);
  return with_context_;
}

cudaError_t& last_error_of_thread() { return last_error; }

void Runtime::violation(const std::string& text) {
  violations_.push_back(text);
  if (collecting_) return;
  fmt::print(stderr, "fake CUDA: {}\nfake CUDA: LOCKSTEP_FAKE_SEED={}\n", text, seed_);
  std::fflush(stderr);
  std::abort();
}

void Runtime::report(const std::string& text) {
  std::lock_guard lock(mutex_);
  violation(text);
}

std::shared_ptr<FakeStream> Runtime::new_stream(int device, bool blocking) {
  return std::make_shared<FakeStream>(++streams_, device, blocking, seed_);
}

std::shared_ptr<FakeStream> Runtime::default_stream(int device) {
  auto& stream = default_streams_[device];
  if (stream == nullptr) stream = new_stream(device, true);
  return stream;
}

std::shared_ptr<FakeStream> Runtime::stream_of(cudaStream_t handle, const char* operation) {
  if (handle == nullptr || handle == cudaStreamLegacy) return default_stream(physical(current_device));
  const auto found = live_streams_.find(handle);
  if (found != live_streams_.end()) return found->second;
  violation(fmt::format("{} with a stream that does not exist (any more)", operation));
  return nullptr;
}

FakeEvent* Runtime::event_of(cudaEvent_t handle, const char* operation) {
  const auto found = live_events_.find(handle);
  if (found != live_events_.end()) return found->second.get();
  violation(fmt::format("{} with an event that does not exist (any more)", operation));
  return nullptr;
}

cudaError_t Runtime::create_stream(cudaStream_t* stream, bool blocking) {
  std::lock_guard lock(mutex_);
  auto made_stream = new_stream(physical(current_device), blocking);
  *stream = reinterpret_cast<cudaStream_t>(made_stream.get());
  live_streams_[*stream] = std::move(made_stream);
  return cudaSuccess;
}

cudaError_t Runtime::destroy_stream(cudaStream_t handle) {
  std::lock_guard lock(mutex_);
  const auto stream = stream_of(handle, "cudaStreamDestroy");
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  stream->end();
  live_streams_.erase(handle);
  return cudaSuccess;
}

cudaError_t Runtime::query_stream(cudaStream_t handle) {
  std::lock_guard lock(mutex_);
  const auto stream = stream_of(handle, "cudaStreamQuery");
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (captures_.takes(*stream)) return captures_.refuse(cudaErrorStreamCaptureUnsupported);
  if (const auto refused = captures_.unsafe_call(); refused != cudaSuccess) return refused;
  if (!stream->done(stream->pushed())) return cudaErrorNotReady;
  host_.join(stream->clock);
  return static_cast<cudaError_t>(sticky_.load());  // what failed may have come to its end just now
}

cudaError_t Runtime::wait_for(const std::vector<std::shared_ptr<FakeStream>>& streams) {
  std::vector<std::pair<std::shared_ptr<FakeStream>, std::uint64_t>> until;
  VectorClock clock;
  {
    std::lock_guard lock(mutex_);
    for (const auto& stream : streams) {
      until.emplace_back(stream, stream->pushed());
      clock.join(stream->clock);
    }
  }
  for (const auto& [stream, tasks] : until) stream->wait_done(tasks);
  std::lock_guard lock(mutex_);
  host_.join(clock);
  for (const auto& [handle, pool] : pools_) trim(*pool, pool->release_threshold);
  return static_cast<cudaError_t>(sticky_.load());
}

cudaError_t Runtime::synchronize_stream(cudaStream_t handle) {
  count_host_synchronisation();
  std::shared_ptr<FakeStream> stream;
  {
    std::lock_guard lock(mutex_);
    stream = stream_of(handle, "cudaStreamSynchronize");
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    if (captures_.takes(*stream)) return captures_.refuse(cudaErrorStreamCaptureUnsupported);
    if (const auto refused = captures_.unsafe_call(); refused != cudaSuccess) return refused;
    order_with_default(*stream);
  }
  return wait_for({stream});
}

std::vector<std::shared_ptr<FakeStream>> Runtime::streams_of(int device) {
  std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<FakeStream>> streams = {default_stream(device)};
  for (const auto& [handle, stream] : live_streams_) {
    if (stream->device == device) streams.push_back(stream);
  }
  return streams;
}

cudaError_t Runtime::synchronize_device() {
  count_host_synchronisation();
  {
    std::lock_guard lock(mutex_);
    if (const auto refused = captures_.device_call(); refused != cudaSuccess) return refused;
  }
  return wait_for(streams_of(physical(current_device)));
}

void Runtime::wait_for_device() {
  for (const auto& stream : streams_of(physical(current_device))) stream->wait_done(stream->pushed());
}

void Runtime::order_with_default(FakeStream& stream) {
  if (!stream.blocking) return;
  const auto own_default = default_stream(stream.device);
  if (&stream != own_default.get()) {
    put_wait(stream, put_mark(*own_default));
    return;
  }
  for (const auto& [handle, other] : live_streams_) {
    if (other->blocking && other->device == stream.device) put_wait(stream, put_mark(*other));
  }
}

std::shared_ptr<Mark> Runtime::put_mark(FakeStream& stream) {
  stream.clock.join(host_);
  auto mark = std::make_shared<Mark>(stream.clock);
  stream.push([mark] { mark->reach(); });
  return mark;
}

void Runtime::put_wait(FakeStream& stream, std::shared_ptr<Mark> mark) {
  stream.clock.join(mark->clock());
  stream.push([mark = std::move(mark)] { mark->wait(); });
}

cudaError_t Runtime::begin_capture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  std::lock_guard lock(mutex_);
  const auto stream = stream_of(handle, "cudaStreamBeginCapture");
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (handle == nullptr) return cudaErrorStreamCaptureUnsupported;
  return captures_.begin(*stream, mode);
}

cudaError_t Runtime::end_capture(cudaStream_t handle) {
  std::lock_guard lock(mutex_);
  const auto stream = stream_of(handle, "cudaStreamEndCapture");
  return stream == nullptr ? cudaErrorInvalidResourceHandle : captures_.end(*stream);
}

cudaError_t Runtime::is_capturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  std::lock_guard lock(mutex_);
  const auto stream = stream_of(handle, "cudaStreamIsCapturing");
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (handle == nullptr && captures_.takes_a_blocking_one()) return cudaErrorStreamCaptureImplicit;
  *status = captures_.takes(*stream) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t Runtime::unsafe_call() {
  std::lock_guard lock(mutex_);
  return captures_.unsafe_call();
}

cudaError_t Runtime::create_event(cudaEvent_t* event, bool timed) {
  std::lock_guard lock(mutex_);
  auto made_event = std::make_unique<FakeEvent>();
  made_event->timed = timed;
  made_event->device = physical(current_device);
  *event = reinterpret_cast<cudaEvent_t>(made_event.get());
  live_events_[*event] = std::move(made_event);
  return cudaSuccess;
}

cudaError_t Runtime::destroy_event(cudaEvent_t handle) {
  std::lock_guard lock(mutex_);
  if (event_of(handle, "cudaEventDestroy") == nullptr) return cudaErrorInvalidResourceHandle;
  live_events_.erase(handle);
  return cudaSuccess;
}

cudaError_t Runtime::record(cudaEvent_t handle, cudaStream_t stream_handle) {
  std::lock_guard lock(mutex_);
  FakeEvent* const event = event_of(handle, "cudaEventRecord");
  const auto stream = stream_of(stream_handle, "cudaEventRecord");
  if (event == nullptr || stream == nullptr || event->device != stream->device) return cudaErrorInvalidResourceHandle;
  if (stream_handle == nullptr && captures_.takes_a_blocking_one()) {
    return captures_.refuse(cudaErrorStreamCaptureImplicit);
  }
  event->captured = captures_.takes(*stream);
  if (event->captured) return cudaSuccess;
  order_with_default(*stream);
  event->mark = put_mark(*stream);
  return cudaSuccess;
}

cudaError_t Runtime::wait(cudaStream_t stream_handle, cudaEvent_t handle) {
  std::lock_guard lock(mutex_);
  const FakeEvent* const event = event_of(handle, "cudaStreamWaitEvent");
  const auto stream = stream_of(stream_handle, "cudaStreamWaitEvent");
  if (event == nullptr || stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (event->captured) return captures_.pull_in(*stream);
  // It would make the graph depend on what is not in it.
  if (captures_.takes(*stream)) return captures_.refuse(cudaErrorStreamCaptureIsolation);
  if (event->mark == nullptr) return cudaSuccess;
  order_with_default(*stream);
  put_wait(*stream, event->mark);
  return cudaSuccess;
}

cudaError_t Runtime::query_event(cudaEvent_t handle) {
  std::lock_guard lock(mutex_);
  const FakeEvent* const event = event_of(handle, "cudaEventQuery");
  if (event == nullptr) return cudaErrorInvalidResourceHandle;
  if (event->captured) return captures_.refuse(cudaErrorCapturedEvent);
  if (const auto refused = captures_.unsafe_call(); refused != cudaSuccess) return refused;
  if (event->mark == nullptr) return cudaSuccess;
  if (!event->mark->reached()) return cudaErrorNotReady;
  host_.join(event->mark->clock());
  return static_cast<cudaError_t>(sticky_.load());
}

cudaError_t Runtime::synchronize_event(cudaEvent_t handle) {
  count_host_synchronisation();
  std::shared_ptr<Mark> mark;
  {
    std::lock_guard lock(mutex_);
    const FakeEvent* const event = event_of(handle, "cudaEventSynchronize");
    if (event == nullptr) return cudaErrorInvalidResourceHandle;
    if (event->captured) return captures_.refuse(cudaErrorCapturedEvent);
    mark = event->mark;
  }
  if (mark == nullptr) return cudaSuccess;
  mark->wait();
  std::lock_guard lock(mutex_);
  host_.join(mark->clock());
  return static_cast<cudaError_t>(sticky_.load());
}

cudaError_t Runtime::elapsed(float* milliseconds, cudaEvent_t earlier, cudaEvent_t later) {
  std::lock_guard lock(mutex_);
  const FakeEvent* const from = event_of(earlier, "cudaEventElapsedTime");
  const FakeEvent* const to = event_of(later, "cudaEventElapsedTime");
  if (from == nullptr || to == nullptr || !from->timed || !to->timed || from->mark == nullptr || to->mark == nullptr ||
      from->device != to->device) {
    return cudaErrorInvalidResourceHandle;
  }
  if (!from->mark->reached() || !to->mark->reached()) return cudaErrorNotReady;
  *milliseconds = std::chrono::duration<float, std::milli>(to->mark->time() - from->mark->time()).count();
  return cudaSuccess;
}

Access Runtime::next_access(FakeStream& stream, const std::string& what) {
  const std::uint64_t number = stream.operations + 1;
  const std::string where =
      &stream == default_stream(stream.device).get() ? "the default stream" : fmt::format("stream {}", stream.id);
  return {stream.id, number,
          std::make_shared<const std::string>(
              fmt::format("{} (operation {} of {} on GPU {})", what, number, where, stream.device))};
}

cudaError_t Runtime::enqueue(cudaStream_t handle, std::string what, std::function<void()> run,
                             const std::vector<Range>& reads, const std::vector<Range>& writes) {
  std::lock_guard lock(mutex_);
  if (const int sticky = sticky_.load(); sticky != cudaSuccess) return static_cast<cudaError_t>(sticky);
  const auto stream = stream_of(handle, what.c_str());
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (captures_.takes(*stream)) return cudaSuccess;  // it is in the graph, and runs with that
  order_with_default(*stream);
  stream->clock.join(host_);
  const Access access = next_access(*stream, what);
  // What it reads and writes at once, such as a sum in place, is no conflict with itself: its number is in its clock.
  stream->clock.set(stream->id, access.number);
  bool in_order = true;
  for (const Range& range : reads) in_order &= check(range, false, access, stream->clock);
  for (const Range& range : writes) in_order &= check(range, true, access, stream->clock);
  stream->operations = access.number;
  const Effect effect = rules_.count("operation");
  if (effect.kind == Effect::Kind::error) {
    stream->push([this, error = effect.error] { sticky_.store(error); });
  } else {
    stream->push(in_order ? std::move(run) : hidden(std::move(run)));
  }
  return cudaSuccess;
}

std::int64_t Runtime::calls(std::string_view function) {
  std::lock_guard lock(mutex_);
  return rules_.counted(function);
}

void Runtime::inject(std::string_view rule) {
  std::lock_guard lock(mutex_);
  rules_.add(rule);
}

void Runtime::heal() {
  std::lock_guard lock(mutex_);
  rules_.clear();
  sticky_.store(cudaSuccess);
  ++times_healed_;
  healed_.notify_all();
}

void Runtime::collect(bool collecting) {
  std::lock_guard lock(mutex_);
  collecting_ = collecting;
  violations_.clear();
}

std::vector<std::string> Runtime::take_violations() {
  std::lock_guard lock(mutex_);
  return std::exchange(violations_, {});
}

cudaError_t enqueue(cudaStream_t stream, std::string what, std::function<void()> run, const std::vector<Range>& reads,
                    const std::vector<Range>& writes) {
  return Runtime::get().enqueue(stream, std::move(what), std::move(run), reads, writes);
}
void* host_address(const void* data) { return Runtime::get().host_address(data); }
void report_violation(const std::string& text) { Runtime::get().report(text); }
std::int64_t calls(std::string_view function) { return Runtime::exists() ? Runtime::get().calls(function) : 0; }
std::int64_t host_synchronisations() { return Runtime::exists() ? Runtime::get().host_synchronisations() : 0; }
std::int64_t operations() { return calls("operation"); }
cudaError_t free_without_waiting(void* data) { return Runtime::get().free_without_waiting(data); }
void wait_for_device() { Runtime::get().wait_for_device(); }
std::set<int> devices_with_context() {
  return Runtime::exists() ? Runtime::get().devices_with_context() : std::set<int>{};
}
bool touched() { return Runtime::exists(); }
void inject(std::string_view rule) { Runtime::get().inject(rule); }
void heal() { Runtime::get().heal(); }
Violations::Violations() { Runtime::get().collect(true); }
Violations::~Violations() { Runtime::get().collect(false); }
std::vector<std::string> Violations::take() { return Runtime::get().take_violations(); }

}  // namespace lockstep::fake_cuda
