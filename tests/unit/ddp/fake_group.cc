// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/ddp/fake_group.h"

#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <thread>

#include "lockstep/base/error.h"
#include "runtime/base/mutex.h"
#include "runtime/comm/group_internals.h"
#include "runtime/comm/op_record.h"
#include "runtime/store/hash_store.h"
#include "tests/support/error_of.h"

namespace lockstep::testing {
namespace {

template <typename T>
void sum_into_all(std::vector<BufferView>& buffers, double divisor) {
  for (std::int64_t i = 0; i < buffers[0].count; ++i) {
    double sum = 0;
    for (const BufferView& buffer : buffers) sum += static_cast<double>(static_cast<T*>(buffer.data)[i]);
    if (divisor > 0) sum /= divisor;
    for (const BufferView& buffer : buffers) static_cast<T*>(buffer.data)[i] = static_cast<T>(sum);
  }
}

struct Collective {
  std::string what;  // operation, count and dtype: must be equal on all ranks
  int root = 0;
  std::vector<ConstBufferView> inputs;
  std::vector<BufferView> outputs;
  comm::ScalarReduction scalars{comm::NoteOps()};
  bool weighted = false;
  std::int64_t unit = 1;
  int arrived = 0;
  bool done = false;

  void execute() {
    if (what.starts_with("all_reduce")) {
      const double divisor = weighted ? static_cast<double>(scalars.words()[0]) / static_cast<double>(unit) : 0;
      if (outputs[0].dtype == DType::f32) {
        sum_into_all<float>(outputs, divisor);
      } else if (outputs[0].dtype == DType::f64) {
        sum_into_all<double>(outputs, divisor);
      } else {
        throw InvalidArgument("fake group: reduces float32 and float64 only");
      }
    } else if (what.starts_with("reduce_scatter")) {
      const double divisor = weighted ? static_cast<double>(scalars.words()[0]) / static_cast<double>(unit) : 0;
      for (std::size_t part = 0; part < outputs.size(); ++part) {
        const BufferView& output = outputs[part];
        std::vector<BufferView> parts;
        for (const ConstBufferView& input : inputs) {
          auto* const data = static_cast<std::byte*>(const_cast<void*>(input.data));
          parts.emplace_back(data + part * output.bytes(), output.count, output.dtype, output.device);
        }
        output.dtype == DType::f64 ? sum_into_all<double>(parts, divisor) : sum_into_all<float>(parts, divisor);
        if (output.data != parts[part].data) std::memcpy(output.data, parts[part].data, output.bytes());
      }
    } else if (what.starts_with("broadcast")) {
      const BufferView& source = outputs[static_cast<std::size_t>(root)];
      for (const BufferView& buffer : outputs) {
        if (buffer.data != source.data && source.bytes() != 0) std::memcpy(buffer.data, source.data, source.bytes());
      }
    } else if (what.starts_with("all_gather")) {
      for (const BufferView& output : outputs) {
        std::byte* to = static_cast<std::byte*>(output.data);
        for (const ConstBufferView& input : inputs) {
          if (input.bytes() != 0) std::memcpy(to, input.data, input.bytes());
          to += input.bytes();
        }
      }
    }
    done = true;
  }
};

}  // namespace

struct FakeWorld::Shared {
  int size = 0;
  std::chrono::nanoseconds timeout{};
  store::HashStore store;
  Mutex mutex;
  Condition changed;
  std::vector<std::shared_ptr<Collective>> collectives GUARDED_BY(mutex);
  std::vector<std::vector<Started>> started GUARDED_BY(mutex);
  std::vector<std::size_t> next GUARDED_BY(mutex);
  std::exception_ptr failure GUARDED_BY(mutex);

  void fail(std::exception_ptr error) REQUIRES(mutex) {
    if (!failure) failure = std::move(error);
    changed.notify_all();
  }
  void check() REQUIRES(mutex) {
    if (failure) std::rethrow_exception(failure);
  }
};

namespace {

using Shared = FakeWorld::Shared;

class FakeWork : public WorkState {
 public:
  FakeWork(std::shared_ptr<Shared> shared, std::shared_ptr<Collective> collective)
      : shared_(std::move(shared)), collective_(std::move(collective)) {}
  bool poll() override {
    MutexLock lock(shared_->mutex);
    if (!collective_->done) shared_->check();
    return collective_->done;
  }
  void wait(const Deadline& deadline) override {
    MutexLock lock(shared_->mutex);
    while (!collective_->done) {
      shared_->check();
      if (!shared_->changed.wait_until(shared_->mutex, deadline) && !collective_->done) {
        shared_->fail(
            std::make_exception_ptr(Timeout("fake group: " + collective_->what + ", " + deadline.progress())));
      }
    }
  }
  std::int64_t combined(std::size_t word) const override {
    MutexLock lock(shared_->mutex);
    return collective_->scalars.words()[word];
  }

 private:
  std::shared_ptr<Shared> shared_;
  std::shared_ptr<Collective> collective_;
};

class FakeGroup : public ProcessGroup, public comm::GroupInternals {
 public:
  FakeGroup(std::shared_ptr<Shared> shared, int rank) : shared_(std::move(shared)), rank_(rank) {
    for (int r = 0; r < shared_->size; ++r) {
      roster_.push_back({.rank = r, .local_rank = r, .pid = 100 + r, .host = "fake", .boot_id = "fake"});
    }
  }
  int rank() const override { return rank_; }
  int size() const override { return shared_->size; }
  DeviceId device() const override { return {}; }
  std::string_view backend() const override { return "fake"; }
  std::chrono::nanoseconds timeout() const override { return shared_->timeout; }
  const rendezvous::Roster& roster() const override { return roster_; }
  store::Store& store() override { return shared_->store; }

  Arena allocate(std::size_t bytes) override {
    const std::shared_ptr<void> memory(std::aligned_alloc(64, bytes), std::free);
    std::memset(memory.get(), 0, bytes);
    arena_ = {memory, static_cast<std::byte*>(memory.get()), bytes};
    return arena_;
  }
  Work all_reduce(const BufferView& buffer, const ReductionOptions& options) override {
    return start("all_reduce", buffer, buffer, 0, options);
  }
  Work broadcast(const BufferView& buffer, int root) override { return start("broadcast", buffer, buffer, root); }
  Work all_gather(const ConstBufferView& input, const BufferView& output) override {
    return start("all_gather", input, output, 0);
  }
  Work barrier() override { return start("barrier", {}, {}, 0); }
  Work reduce(const BufferView&, int, ReduceOp) override { return absent(); }
  Work reduce_scatter(const ConstBufferView& input, const BufferView& output,
                      const ReductionOptions& options) override {
    return start("reduce_scatter", input, output, 0, options);
  }
  Work gather(const ConstBufferView&, const BufferView&, int) override { return absent(); }
  Work scatter(const ConstBufferView&, const BufferView&, int) override { return absent(); }
  Work all_to_all(const ConstBufferView&, const BufferView&) override { return absent(); }
  Work send(const ConstBufferView&, int, int) override { return absent(); }
  Work recv(const BufferView&, int, int) override { return absent(); }
  comm::GroupInternals& internals() override { return *this; }
  const comm::GroupInternals& internals() const override { return *this; }
  bool takes(DeviceId where) const override { return where == device(); }
  void on_peer_failure(const Cause& cause) override { abort(cause.text); }
  std::shared_ptr<ProcessGroup> make_subgroup(const comm::Subgroup&) override { return nullptr; }
  void set_step(std::int64_t step, int bucket) override {
    step_ = step;
    bucket_ = bucket;
  }
  std::int64_t step() const override { return step_; }
  int bucket() const override { return bucket_; }
  void progress() override {
    MutexLock lock(shared_->mutex);
    shared_->check();
  }
  void abort(const std::string& cause) override {
    MutexLock lock(shared_->mutex);
    shared_->fail(std::make_exception_ptr(PeerLost(cause)));
  }

 private:
  static Work absent() { throw InvalidArgument("fake group: not one of its collectives"); }

  Work start(const std::string& operation, const ConstBufferView& input, const BufferView& output, int root,
             const ReductionOptions& options = {}) {
    MutexLock lock(shared_->mutex);
    shared_->check();
    const auto rank = static_cast<std::size_t>(rank_);
    const auto* address = static_cast<const std::byte*>(input.data);
    const bool inside = arena_.data && address >= arena_.data && address < arena_.data + arena_.bytes;
    shared_->started[rank].push_back(
        {operation, input.count, input.dtype, inside ? address - arena_.data : -1, options.weight, options.unit});

    const std::size_t sequence = shared_->next[rank]++;
    if (sequence == shared_->collectives.size()) shared_->collectives.push_back(std::make_shared<Collective>());
    const std::shared_ptr<Collective> collective = shared_->collectives[sequence];
    const std::string what = fmt::format("{} of {} {}", operation, input.count, name_of(input.dtype));
    if (collective->arrived++ == 0) {
      collective->what = what;
      collective->scalars = comm::ScalarReduction(comm::NoteOps(options.note));
      collective->root = root;
      collective->inputs.resize(static_cast<std::size_t>(shared_->size));
      collective->outputs.resize(static_cast<std::size_t>(shared_->size));
    } else if (collective->what != what) {
      shared_->fail(std::make_exception_ptr(Mismatch("fake group: " + collective->what + " against " + what)));
      shared_->check();
    }
    collective->inputs[rank] = input;
    collective->outputs[rank] = output;
    collective->weighted = options.weight.has_value();
    collective->unit = options.unit;
    collective->scalars.add(comm::words_of(options));
    if (collective->arrived == shared_->size) {
      collective->execute();
      shared_->changed.notify_all();
    }
    return Work(std::make_shared<FakeWork>(shared_, collective), shared_->timeout);
  }

  std::shared_ptr<Shared> shared_;
  int rank_;
  rendezvous::Roster roster_;
  Arena arena_;
  std::int64_t step_ = -1;
  int bucket_ = -1;
};

}  // namespace

FakeWorld::FakeWorld(int size, std::chrono::nanoseconds timeout) : shared_(std::make_shared<Shared>()) {
  shared_->size = size;
  shared_->timeout = timeout;
  MutexLock lock(shared_->mutex);
  shared_->started.resize(static_cast<std::size_t>(size));
  shared_->next.resize(static_cast<std::size_t>(size));
}

int FakeWorld::size() const { return shared_->size; }
store::Store& FakeWorld::store() { return shared_->store; }
std::shared_ptr<ProcessGroup> FakeWorld::group(int rank) { return std::make_shared<FakeGroup>(shared_, rank); }

std::vector<Started> FakeWorld::started(int rank) const {
  MutexLock lock(shared_->mutex);
  return shared_->started[static_cast<std::size_t>(rank)];
}

std::vector<std::exception_ptr> FakeWorld::run_catching(
    const std::function<void(const std::shared_ptr<ProcessGroup>&)>& body) {
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(size()));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size(); ++rank) {
    threads.emplace_back([&, rank] {
      const auto mine = group(rank);
      try {
        body(mine);
      } catch (...) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
        mine->abort(fmt::format("rank {} threw", rank));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

void FakeWorld::run(const std::function<void(const std::shared_ptr<ProcessGroup>&)>& body) {
  for (const std::exception_ptr& error : run_catching(body)) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace lockstep::testing
