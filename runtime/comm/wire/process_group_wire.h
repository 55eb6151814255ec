// The process group over a wire: the backends across hosts, gloo and mpi.
//
// One communication thread per group moves everything, in the order of the calls. Arenas are plain memory of this rank.
// Contract: comm/process_group.h.
#pragma once

#include <memory>
#include <string>

#include "runtime/comm/backend.h"
#include "runtime/comm/wire/engine.h"

namespace lockstep::wire {

class ProcessGroupWire final : public ProcessGroup {
 public:
  // Connects all ranks over `wire`. Collective. `backend`: the name of the backend.
  static std::shared_ptr<ProcessGroup> create(std::string backend, GroupContext context, std::unique_ptr<Wire> wire,
                                              const Deadline& deadline,
                                              const ThreadMaker& make_thread = start_own_thread);
  ProcessGroupWire(std::string backend, GroupContext context, std::shared_ptr<Engine> engine);
  // Says goodbye; aborts during unwinding, and if a collective of this rank is still under way.
  ~ProcessGroupWire() override;
  ProcessGroupWire(const ProcessGroupWire&) = delete;
  ProcessGroupWire& operator=(const ProcessGroupWire&) = delete;

  int rank() const override { return context_.identity.rank; }
  int size() const override { return static_cast<int>(context_.roster.size()); }
  DeviceId device() const override { return context_.device; }
  std::string_view backend() const override { return backend_; }
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
  // The communication thread needs no push.
  void progress() override { engine_->check(); }
  void abort(const std::string& cause) override;
  void lose(int rank, const std::string& how) override { engine_->lose(rank, how); }
  std::int64_t last_sequence() const override { return static_cast<std::int64_t>(engine_->last()); }

 private:
  Work start(comm::Task task);
  Work message(bool is_send, const BufferView& buffer, int peer, int tag);

  const std::string backend_;
  GroupContext context_;
  std::shared_ptr<Engine> engine_;
  int exceptions_at_birth_;
};

}  // namespace lockstep::wire
