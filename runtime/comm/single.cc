#include "runtime/comm/single.h"

#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <exception>
#include <list>
#include <new>

#include "runtime/base/error.h"
#include "runtime/base/mutex.h"
#include "runtime/comm/arguments.h"
#include "runtime/comm/op_record.h"
#include "runtime/comm/reduction.h"
#include "runtime/comm/roster_cause.h"

namespace lockstep {
namespace {

// The first cause, which abort() may set from any thread.
class Failure {
 public:
  void set(std::exception_ptr cause) {
    MutexLock lock(mutex_);
    if (!cause_) cause_ = std::move(cause);
  }
  void check() {
    MutexLock lock(mutex_);
    if (cause_) std::rethrow_exception(cause_);
  }
  // Fails the group, then throws the first cause.
  template <typename Cause>
  [[noreturn]] void fail(const std::string& text) {
    const std::exception_ptr own = std::make_exception_ptr(Cause(text));
    set(own);
    check();
    std::rethrow_exception(own);  // not reached: there is a cause now
  }

 private:
  Mutex mutex_;
  std::exception_ptr cause_ GUARDED_BY(mutex_);
};

class Done : public WorkState {
 public:
  explicit Done(std::shared_ptr<Failure> failure, const comm::Words& words = {})
      : failure_(std::move(failure)), words_(words) {}
  bool poll() override {
    failure_->check();
    return true;
  }
  void wait(const Deadline&) override { failure_->check(); }
  std::int64_t combined(std::size_t word) const override { return words_[word]; }

 private:
  std::shared_ptr<Failure> failure_;
  comm::Words words_;
};

// Half of a message to oneself.
class Message : public WorkState {
 public:
  Message(std::shared_ptr<Failure> failure, const BufferView& buffer, bool is_send, int tag)
      : failure_(std::move(failure)), buffer_(buffer), is_send_(is_send), tag_(tag) {}

  bool poll() override {
    failure_->check();
    return done_;
  }
  void wait(const Deadline&) override {
    failure_->check();
    if (done_) return;
    // Nobody else can bring the other half, so waiting longer brings nothing.
    failure_->fail<Timeout>(
        fmt::format("{} with tag {} of {} x {} on the only rank: the other half was never started; start "
                    "both before waiting for one",
                    is_send_ ? "send" : "recv", tag_, buffer_.count, name_of(buffer_.dtype)));
  }
  bool matches(const Message& other) const { return is_send_ != other.is_send_ && tag_ == other.tag_; }
  void finish_with(Message& other) {
    const Message& from = is_send_ ? *this : other;
    const Message& to = is_send_ ? other : *this;
    if (from.buffer_.dtype != to.buffer_.dtype || from.buffer_.count != to.buffer_.count) {
      failure_->fail<Mismatch>(fmt::format("recv with tag {} wants {} x {}, but {} x {} were sent", tag_,
                                           to.buffer_.count, name_of(to.buffer_.dtype), from.buffer_.count,
                                           name_of(from.buffer_.dtype)));
    }
    if (from.buffer_.bytes() > 0) std::memmove(to.buffer_.data, from.buffer_.data, from.buffer_.bytes());
    done_ = other.done_ = true;
  }

 private:
  std::shared_ptr<Failure> failure_;
  BufferView buffer_;
  bool is_send_;
  int tag_;
  bool done_ = false;
};

class ProcessGroupSingle final : public ProcessGroup {
 public:
  explicit ProcessGroupSingle(GroupContext context) : context_(std::move(context)) {}

  int rank() const override { return 0; }
  int size() const override { return 1; }
  DeviceId device() const override { return context_.device; }
  std::string_view backend() const override { return "single"; }
  std::chrono::nanoseconds timeout() const override { return context_.timeout; }
  const rendezvous::Roster& roster() const override { return context_.roster; }
  store::Store& store() override { return *context_.store; }

  Arena allocate(std::size_t bytes) override {
    failure_->check();
    constexpr std::size_t kAlignment = 64;
    const std::size_t rounded = (bytes / kAlignment + 1) * kAlignment;
    void* memory = rounded > bytes ? std::aligned_alloc(kAlignment, rounded) : nullptr;
    if (memory == nullptr) {
      throw InvalidArgument(fmt::format("allocate of {} bytes on the only rank: there is not so much memory", bytes));
    }
    std::memset(memory, 0, rounded);
    return {std::shared_ptr<void>(memory, &std::free), static_cast<std::byte*>(memory), bytes};
  }

  Work all_reduce(const BufferView& buffer, const AllReduceOptions& options) override {
    failure_->check();
    comm::check_buffer(*this, "all_reduce", buffer);
    comm::check_weight(*this, buffer, options);
    comm::check_note(*this, options.note);
    const std::int64_t weight = options.weight.value_or(0);
    if (weight > 0 && weight != options.unit) {
      const auto* source = static_cast<const std::byte*>(buffer.data);
      comm::reduce({buffer.dtype, ReduceOp::sum, weight, options.unit}, std::span(&source, 1),
                   static_cast<std::byte*>(buffer.data), static_cast<std::size_t>(buffer.count));
    }
    comm::Tally tally{comm::NoteOps(options.note)};
    tally.add(comm::words_of(options));
    return done(tally.words());
  }
  Work broadcast(const BufferView& buffer, int root) override { return in_place("broadcast", buffer, root); }
  Work reduce(const BufferView& buffer, int root, ReduceOp) override { return in_place("reduce", buffer, root); }
  Work all_gather(const BufferView& input, const BufferView& output) override {
    comm::check_parts(*this, "all_gather", input, output, 0);
    return copy(input, output);
  }
  Work reduce_scatter(const BufferView& input, const BufferView& output, ReduceOp) override {
    comm::check_parts(*this, "reduce_scatter", output, input, 0);
    return copy(input, output);
  }
  Work gather(const BufferView& input, const BufferView& output, int root) override {
    comm::check_rank(*this, "gather", "root", root);
    comm::check_parts(*this, "gather", input, output, 0);
    return copy(input, output);
  }
  Work scatter(const BufferView& input, const BufferView& output, int root) override {
    comm::check_rank(*this, "scatter", "root", root);
    comm::check_parts(*this, "scatter", output, input, 0);
    return copy(input, output);
  }
  Work all_to_all(const BufferView& input, const BufferView& output) override {
    comm::check_exchange(*this, input, output);
    return copy(input, output);
  }
  Work barrier() override { return done(); }
  Work send(const BufferView& buffer, int destination, int tag) override {
    comm::check_rank(*this, "send", "destination", destination);
    return message("send", buffer, true, tag);
  }
  Work recv(const BufferView& buffer, int source, int tag) override {
    comm::check_rank(*this, "recv", "source", source);
    return message("recv", buffer, false, tag);
  }
  void progress() override { failure_->check(); }
  void abort(const std::string& cause) override {
    failure_->set(std::make_exception_ptr(PeerLost(comm::cause_about(
        context_.roster, Cause::Kind::aborted, 0, 0, cause.empty() ? "aborted without a cause" : cause))));
  }

 private:
  Work done(const comm::Words& words = {}) {
    failure_->check();
    return Work(std::make_shared<Done>(failure_, words), context_.timeout);
  }
  Work in_place(std::string_view operation, const BufferView& buffer, int root) {
    comm::check_buffer(*this, operation, buffer);
    comm::check_rank(*this, operation, "root", root);
    return done();
  }
  Work copy(const BufferView& input, const BufferView& output) {
    failure_->check();
    if (input.bytes() > 0 && input.data != output.data) std::memcpy(output.data, input.data, input.bytes());
    return done();
  }
  Work message(std::string_view operation, const BufferView& buffer, bool is_send, int tag) {
    failure_->check();
    comm::check_buffer(*this, operation, buffer);
    comm::check_tag(*this, operation, tag);
    auto message = std::make_shared<Message>(failure_, buffer, is_send, tag);
    for (auto other = waiting_.begin(); other != waiting_.end(); ++other) {
      if (!message->matches(**other)) continue;
      message->finish_with(**other);
      waiting_.erase(other);
      return Work(message, context_.timeout);
    }
    waiting_.push_back(message);
    return Work(message, context_.timeout);
  }

  GroupContext context_;
  std::shared_ptr<Failure> failure_ = std::make_shared<Failure>();
  std::list<std::shared_ptr<Message>> waiting_;
};

}  // namespace

Backend single_backend() {
  return {"single",
          [](const GroupContext& context) -> std::string {
            if (context.roster.size() == 1) return {};
            return fmt::format("backend 'single' serves one rank, this job has {}; use 'auto' or 'shm'",
                               context.roster.size());
          },
          [](const GroupContext& context, const Deadline&) -> std::shared_ptr<ProcessGroup> {
            return std::make_shared<ProcessGroupSingle>(context);
          }};
}

}  // namespace lockstep
