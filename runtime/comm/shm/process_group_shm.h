// The process group of one host: collectives over shared memory (DESIGN: runtime/comm/shm).
//
// Buffers inside an arena of allocate() are read and written in place by all ranks; other memory passes through a
// window that stays in cache; up to kInlineBytes per rank travel beside the operation's record. The caller makes all
// progress: there is no thread. Contract: comm/process_group.h.
#pragma once

#include "runtime/comm/backend.h"
#include "runtime/comm/shm/bootstrap.h"
#include "runtime/comm/shm/engine.h"

namespace lockstep::shm {

class ProcessGroupShm final : public ProcessGroup {
 public:
  ProcessGroupShm(GroupContext context, Meeting meeting);
  // Says goodbye; aborts during unwinding, and if a collective of this rank is still under way.
  ~ProcessGroupShm() override;
  ProcessGroupShm(const ProcessGroupShm&) = delete;
  ProcessGroupShm& operator=(const ProcessGroupShm&) = delete;

  int rank() const override { return context_.identity.rank; }
  int size() const override { return static_cast<int>(context_.roster.size()); }
  DeviceId device() const override { return context_.device; }
  std::string_view backend() const override { return "shm"; }
  std::chrono::nanoseconds timeout() const override { return context_.timeout; }
  const rendezvous::Roster& roster() const override { return context_.roster; }
  store::Store& store() override { return *context_.store; }

  Arena allocate(std::size_t bytes) override;
  Work all_reduce(const BufferView& buffer, const AllReduceOptions& options) override;
  Work broadcast(const BufferView& buffer, int root) override;
  Work reduce(const BufferView& buffer, int root, ReduceOp op) override;
  Work all_gather(const BufferView& input, const BufferView& output) override;
  Work reduce_scatter(const BufferView& input, const BufferView& output, ReduceOp op) override;
  Work gather(const BufferView& input, const BufferView& output, int root) override;
  Work scatter(const BufferView& input, const BufferView& output, int root) override;
  Work all_to_all(const BufferView& input, const BufferView& output) override;
  Work barrier() override;
  Work send(const BufferView& buffer, int destination, int tag) override;
  Work recv(const BufferView& buffer, int source, int tag) override;
  void progress() override { engine_->progress(); }
  void abort(const std::string& cause) override;
  void lose(int rank, const std::string& how) override { engine_->session().lose(rank, how); }
  std::int64_t last_sequence() const override;

 private:
  Task task(OpKind kind, const BufferView& input, const BufferView& output, std::int64_t count) const;
  Work start(Task task);
  Work message(bool is_send, const BufferView& buffer, int peer, int tag);
  // All ranks' texts, cut to fit beside the record.
  std::vector<std::string> exchange(const std::string& text);

  GroupContext context_;
  Couriers couriers_;
  std::shared_ptr<Engine> engine_;
  int exceptions_at_birth_;
};

// "shm".
Backend backend();

}  // namespace lockstep::shm
