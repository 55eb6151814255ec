// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/single.h"

#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <exception>
#include <list>

#include "lockstep/base/error.h"
#include "runtime/base/mutex.h"
#include "runtime/comm/process_group_base.h"
#include "runtime/comm/reduction.h"
#include "runtime/comm/roster_cause.h"

namespace lockstep {
namespace {

// The first cause of the group's failure, which abort() may set from any thread.
class FirstCause {
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
  explicit Done(std::shared_ptr<FirstCause> first_cause, const comm::InlineScalars& words = {})
      : first_cause_(std::move(first_cause)), words_(words) {}
  bool poll() override {
    first_cause_->check();
    return true;
  }
  void wait(const Deadline&) override { first_cause_->check(); }
  std::int64_t combined(std::size_t word) const override { return words_[word]; }

 private:
  std::shared_ptr<FirstCause> first_cause_;
  comm::InlineScalars words_;
};

// Half of a message to oneself.
class SelfMessage : public WorkState {
 public:
  SelfMessage(std::shared_ptr<FirstCause> first_cause, const comm::P2pOp& p2p)
      : first_cause_(std::move(first_cause)), p2p_(p2p) {}

  bool poll() override {
    first_cause_->check();
    return p2p_.done;
  }
  void wait(const Deadline&) override {
    first_cause_->check();
    if (p2p_.done) return;
    // Nobody else can bring the other half, so waiting longer brings nothing.
    first_cause_->fail<Timeout>(
        fmt::format("{} with tag {} of {} x {} on the only rank: the other half was never started; start "
                    "both before waiting for one",
                    p2p_.is_send ? "send" : "recv", p2p_.tag, p2p_.buffer.count, name_of(p2p_.buffer.dtype)));
  }
  bool matches(const SelfMessage& other) const {
    return p2p_.is_send != other.p2p_.is_send && p2p_.tag == other.p2p_.tag;
  }
  void finish_with(SelfMessage& other) {
    const comm::P2pOp& from = p2p_.is_send ? p2p_ : other.p2p_;
    const comm::P2pOp& to = p2p_.is_send ? other.p2p_ : p2p_;
    if (from.buffer.dtype != to.buffer.dtype || from.buffer.count != to.buffer.count) {
      first_cause_->fail<Mismatch>(fmt::format("recv with tag {} wants {} x {}, but {} x {} were sent", to.tag,
                                               to.buffer.count, name_of(to.buffer.dtype), from.buffer.count,
                                               name_of(from.buffer.dtype)));
    }
    comm::copy_bytes(to.target, from.buffer.data, from.buffer.bytes());
    p2p_.done = other.p2p_.done = true;
  }

 private:
  std::shared_ptr<FirstCause> first_cause_;
  comm::P2pOp p2p_;
};

class ProcessGroupSingle final : public comm::ProcessGroupBase {
 public:
  using ProcessGroupBase::ProcessGroupBase;

  std::string_view backend() const override { return "single"; }
  bool sums_in_rank_order() const override { return true; }
  Arena allocate(std::size_t bytes) override {
    first_cause_->check();
    constexpr std::size_t kAlignment = 64;
    const std::size_t rounded = (bytes / kAlignment + 1) * kAlignment;
    void* memory = rounded > bytes ? std::aligned_alloc(kAlignment, rounded) : nullptr;
    if (memory == nullptr) {
      throw InvalidArgument(fmt::format(
          "allocate of {} bytes on the only rank: the host does not have so much memory; ask for fewer bytes", bytes));
    }
    std::memset(memory, 0, rounded);
    return {std::shared_ptr<void>(memory, &std::free), static_cast<std::byte*>(memory), bytes};
  }
  void progress() override { first_cause_->check(); }
  void abort(const std::string& cause) override {
    first_cause_->set(std::make_exception_ptr(make_error<PeerLost>(
        comm::cause_about(roster(), Cause::Kind::aborted, 0, 0, cause.empty() ? "aborted without a cause" : cause))));
  }

 private:
  Work start(comm::CollectiveArgs args) override {
    first_cause_->check();
    const comm::InlineScalars& words = args.record.words;
    if (words[0] > 0 && words[0] != args.record.unit) {
      const auto* source = static_cast<const std::byte*>(args.input.data);
      args.reduction.divisor = words[0];
      comm::reduce(args.reduction, std::span(&source, 1), static_cast<std::byte*>(args.output.data), args.count());
    } else {
      comm::copy_bytes(args.output.data, args.input.data, args.output.bytes());
    }
    comm::ScalarReduction scalars(args.record.note);
    scalars.add(words);
    return Work(std::make_shared<Done>(first_cause_, scalars.words()), timeout());
  }
  Work start_message(const comm::P2pOp& p2p) override {
    first_cause_->check();
    auto message = std::make_shared<SelfMessage>(first_cause_, p2p);
    for (auto other = waiting_.begin(); other != waiting_.end(); ++other) {
      if (!message->matches(**other)) continue;
      message->finish_with(**other);
      waiting_.erase(other);
      return Work(message, timeout());
    }
    waiting_.push_back(message);
    return Work(message, timeout());
  }

  std::shared_ptr<FirstCause> first_cause_ = std::make_shared<FirstCause>();
  std::list<std::shared_ptr<SelfMessage>> waiting_;
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
