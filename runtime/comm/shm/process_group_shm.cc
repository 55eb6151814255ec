#include "runtime/comm/shm/process_group_shm.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>

#include "runtime/base/error.h"
#include "runtime/comm/arguments.h"
#include "runtime/net/stream.h"

namespace lockstep::shm {
namespace {

constexpr std::size_t kExchangeBytes = 1024;

}  // namespace

ProcessGroupShm::ProcessGroupShm(GroupContext context, Meeting meeting)
    : context_(std::move(context)),
      couriers_(std::move(meeting.couriers)),
      engine_(std::make_shared<Engine>(std::move(meeting.control), context_.roster, context_.identity.rank)),
      exceptions_at_birth_(std::uncaught_exceptions()) {}

ProcessGroupShm::~ProcessGroupShm() {
  if (std::uncaught_exceptions() > exceptions_at_birth_) {
    engine_->close_unwinding();
  } else {
    engine_->close();
  }
}

Task ProcessGroupShm::task(OpKind kind, const BufferView& input, const BufferView& output, std::int64_t count) const {
  Task task;
  task.record.kind = kind;
  task.record.dtype = output.dtype;
  task.record.count = count;
  task.input = input;
  task.output = output;
  task.rank = rank();
  task.size = size();
  task.reduction.dtype = output.dtype;
  return task;
}

Work ProcessGroupShm::start(Task task) {
  return Work(engine_->start(std::move(task), context_.timeout), context_.timeout);
}

std::vector<std::string> ProcessGroupShm::exchange(const std::string& text) {
  std::vector<std::uint8_t> own(kExchangeBytes);
  std::copy_n(text.begin(), std::min(text.size(), own.size() - 1), own.begin());
  std::vector<std::uint8_t> all(kExchangeBytes * context_.roster.size());
  start(task(OpKind::all_gather, BufferView(std::span(own)), BufferView(std::span(all)),
             static_cast<std::int64_t>(kExchangeBytes)))
      .wait();
  std::vector<std::string> texts;
  for (std::size_t r = 0; r < context_.roster.size(); ++r) {
    texts.emplace_back(reinterpret_cast<const char*>(all.data() + r * kExchangeBytes));
  }
  return texts;
}

Arena ProcessGroupShm::allocate(std::size_t bytes) {
  constexpr std::size_t kMost = std::size_t{1} << 48;
  if (bytes > kMost) {
    throw InvalidArgument(fmt::format("allocate of {} bytes: no machine has so much; is a size negative?", bytes));
  }
  const Deadline deadline = Deadline::after(context_.timeout);
  const std::size_t wanted = std::max<std::size_t>(bytes, 1);
  const Task agreement = task(OpKind::allocate, {}, {}, static_cast<std::int64_t>(bytes));
  const std::string what = comm::describe(agreement.record);
  // First all agree that they allocate, and how much; what each has dropped before is known then. Once all have let go
  // of it, that memory is free to be taken again.
  start(agreement).wait(deadline);
  engine_->arenas().forget_dropped();
  start(agreement).wait(deadline);

  const std::size_t file_bytes = ArenaTable::file_bytes(size(), wanted);
  std::shared_ptr<Mapping> memory;
  std::string problem;
  try {
    UniqueFd fd;
    if (rank() == 0) {
      try {
        fd = create_memory("lockstep-arena", file_bytes);
      } catch (const Error& error) {
        problem = error.what();
      }
      couriers_.hand_out(fd.get(), deadline);
    } else {
      fd = couriers_.receive(deadline, [&] {
        engine_->progress();
        engine_->session().check_lives(what);
      });
    }
    if (fd) memory = Mapping::of(std::move(fd), file_bytes);
  } catch (const net::ConnectionClosed& error) {
    engine_->session().fail(Cause::peer_lost,
                            fmt::format("{} was in {}: {}", engine_->session().who(rank()), what, error.what()));
  } catch (const Timeout& error) {
    engine_->session().fail(Cause::timeout,
                            fmt::format("{} was in {}: {}", engine_->session().who(rank()), what, error.what()));
  } catch (const Error& error) {
    problem = error.what();
  }
  // Then all tell what came of it, so that all have the arena or none has.
  const auto problems = exchange(problem);
  std::string reasons;
  for (std::size_t r = 0; r < problems.size(); ++r) {
    if (problems[r].empty()) continue;
    reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", roster()[r].describe(), problems[r]);
  }
  if (!reasons.empty()) throw BackendUnavailable(fmt::format("allocate ({} bytes per rank): {}", bytes, reasons));
  Arena arena = engine_->arenas().add(std::move(memory), wanted);
  arena.bytes = bytes;
  return arena;
}

Work ProcessGroupShm::all_reduce(const BufferView& buffer, const AllReduceOptions& options) {
  comm::check_buffer(*this, "all_reduce", buffer);
  comm::check_weight(*this, buffer, options);
  Task work = task(OpKind::all_reduce, buffer, buffer, buffer.count);
  work.record.op = work.reduction.op = options.op;
  work.record.weighted = options.weight.has_value();
  work.record.weight = options.weight.value_or(0);
  return start(std::move(work));
}

Work ProcessGroupShm::broadcast(const BufferView& buffer, int root) {
  comm::check_buffer(*this, "broadcast", buffer);
  comm::check_rank(*this, "broadcast", "root", root);
  Task work = task(OpKind::broadcast, buffer, buffer, buffer.count);
  work.record.root = root;
  return start(std::move(work));
}

Work ProcessGroupShm::reduce(const BufferView& buffer, int root, ReduceOp op) {
  comm::check_buffer(*this, "reduce", buffer);
  comm::check_rank(*this, "reduce", "root", root);
  Task work = task(OpKind::reduce, buffer, buffer, buffer.count);
  work.record.root = root;
  work.record.op = work.reduction.op = op;
  return start(std::move(work));
}

Work ProcessGroupShm::all_gather(const BufferView& input, const BufferView& output) {
  comm::check_parts(*this, "all_gather", input, output, rank());
  return start(task(OpKind::all_gather, input, output, input.count));
}

Work ProcessGroupShm::reduce_scatter(const BufferView& input, const BufferView& output, ReduceOp op) {
  comm::check_parts(*this, "reduce_scatter", output, input, rank());
  Task work = task(OpKind::reduce_scatter, input, output, output.count);
  work.record.op = work.reduction.op = op;
  return start(std::move(work));
}

Work ProcessGroupShm::gather(const BufferView& input, const BufferView& output, int root) {
  comm::check_rank(*this, "gather", "root", root);
  if (rank() == root) {
    comm::check_parts(*this, "gather", input, output, root);
  } else {
    comm::check_buffer(*this, "gather", input);
  }
  Task work = task(OpKind::gather, input, rank() == root ? output : BufferView(nullptr, 0, input.dtype), input.count);
  work.record.root = root;
  return start(std::move(work));
}

Work ProcessGroupShm::scatter(const BufferView& input, const BufferView& output, int root) {
  comm::check_rank(*this, "scatter", "root", root);
  if (rank() == root) {
    comm::check_parts(*this, "scatter", output, input, root);
  } else {
    comm::check_buffer(*this, "scatter", output);
  }
  Task work =
      task(OpKind::scatter, rank() == root ? input : BufferView(nullptr, 0, output.dtype), output, output.count);
  work.record.root = root;
  return start(std::move(work));
}

Work ProcessGroupShm::all_to_all(const BufferView& input, const BufferView& output) {
  comm::check_exchange(*this, input, output);
  return start(task(OpKind::all_to_all, input, output, input.count / size()));
}

Work ProcessGroupShm::barrier() { return start(task(OpKind::barrier, {}, {}, 0)); }

Work ProcessGroupShm::message(bool is_send, const BufferView& buffer, int peer, int tag) {
  const std::string_view operation = is_send ? "send" : "recv";
  comm::check_buffer(*this, operation, buffer);
  comm::check_rank(*this, operation, is_send ? "destination" : "source", peer);
  comm::check_tag(*this, operation, tag);
  engine_->progress();
  Parcel parcel;
  parcel.is_send = is_send;
  parcel.buffer = buffer;
  parcel.peer = peer;
  parcel.tag = tag;
  return Work(std::make_shared<MessageWork>(engine_, engine_->mailbox().start(std::move(parcel))), context_.timeout);
}

Work ProcessGroupShm::send(const BufferView& buffer, int destination, int tag) {
  return message(true, buffer, destination, tag);
}

Work ProcessGroupShm::recv(const BufferView& buffer, int source, int tag) {
  return message(false, buffer, source, tag);
}

void ProcessGroupShm::abort(const std::string& cause) {
  engine_->session().abort(Cause::peer_lost, cause.empty() ? "aborted without a cause" : cause);
}

std::int64_t ProcessGroupShm::last_sequence() const {
  return static_cast<std::int64_t>(engine_->session().own().started.load(std::memory_order_relaxed));
}

Backend backend() {
  return {"shm",
          [](const GroupContext& context) -> std::string {
            if (context.roster.size() > static_cast<std::size_t>(kMaxRanks)) {
              return fmt::format("backend 'shm' serves up to {} ranks, this job has {}; run fewer ranks per host",
                                 kMaxRanks, context.roster.size());
            }
            const auto& first = context.roster.front();
            for (const auto& member : context.roster) {
              if (member.boot_id == first.boot_id) continue;
              return fmt::format(
                  "backend 'shm' serves ranks of one host, but {} and {} are on different ones; run all "
                  "ranks on one host",
                  first.describe(), member.describe());
            }
            if (context.device.kind != DeviceKind::cpu) {
              return fmt::format("backend 'shm' computes on the CPU, this rank's device is {}; use device 'cpu'",
                                 context.device.str());
            }
            return {};
          },
          [](const GroupContext& context, const Deadline& deadline) -> std::shared_ptr<ProcessGroup> {
            Meeting meeting = meet(context, deadline);
            return std::make_shared<ProcessGroupShm>(context, std::move(meeting));
          }};
}

}  // namespace lockstep::shm
