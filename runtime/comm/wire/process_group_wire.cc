#include "runtime/comm/wire/process_group_wire.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <exception>

#include "runtime/base/error.h"
#include "runtime/comm/arguments.h"

namespace lockstep::wire {
namespace {

using comm::OpKind;
using comm::Task;

// Fresh pages: zero, aligned, and taken from the machine when they are first touched.
Arena map_memory(std::size_t bytes) {
  const std::size_t mapped = bytes == 0 ? 1 : bytes;
  void* const memory = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw SystemError(fmt::format("mmap of {} bytes", bytes), errno);
  return {std::shared_ptr<void>(memory, [mapped](void* data) { ::munmap(data, mapped); }),
          static_cast<std::byte*>(memory), bytes};
}

}  // namespace

std::shared_ptr<ProcessGroup> ProcessGroupWire::create(std::string backend, GroupContext context,
                                                       std::unique_ptr<Wire> wire, const Deadline& deadline,
                                                       const ThreadMaker& make_thread) {
  auto engine = std::make_shared<Engine>(std::move(wire), context.roster, context.identity.rank, context.store);
  engine->open(make_thread, deadline, context.check);
  return std::make_shared<ProcessGroupWire>(std::move(backend), std::move(context), std::move(engine));
}

ProcessGroupWire::ProcessGroupWire(std::string backend, GroupContext context, std::shared_ptr<Engine> engine)
    : backend_(std::move(backend)),
      context_(std::move(context)),
      engine_(std::move(engine)),
      exceptions_at_birth_(std::uncaught_exceptions()) {}

ProcessGroupWire::~ProcessGroupWire() {
  if (std::uncaught_exceptions() > exceptions_at_birth_) {
    engine_->close_unwinding();
  } else {
    engine_->close();
  }
}

Work ProcessGroupWire::start(Task task) {
  task.rank = rank();
  task.size = size();
  task.reduction.dtype = task.record.dtype;
  task.reduction.op = task.record.op;
  return Work(engine_->start(std::move(task)), context_.timeout);
}

namespace {

Task task_of(OpKind kind, const BufferView& input, const BufferView& output, std::int64_t count) {
  Task task;
  task.record.kind = kind;
  task.record.dtype = output.dtype;
  task.record.count = count;
  task.input = input;
  task.output = output;
  return task;
}

}  // namespace

Arena ProcessGroupWire::allocate(std::size_t bytes) {
  constexpr std::size_t kMost = std::size_t{1} << 48;
  if (bytes > kMost) {
    throw InvalidArgument(fmt::format("allocate of {} bytes: no machine has so much; is a size negative?", bytes));
  }
  start(task_of(OpKind::allocate, {}, {}, static_cast<std::int64_t>(bytes))).wait();
  Arena arena;
  std::string problem;
  try {
    arena = map_memory(bytes);
  } catch (const SystemError& error) {
    problem = error.what();
  }
  // All tell what came of it, so that all have the arena or none has.
  const auto problems = all_gather_text(*this, problem);
  std::string reasons;
  for (std::size_t r = 0; r < problems.size(); ++r) {
    if (problems[r].empty()) continue;
    reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", roster()[r].describe(), problems[r]);
  }
  if (!reasons.empty()) throw BackendUnavailable(fmt::format("allocate ({} bytes per rank): {}", bytes, reasons));
  return arena;
}

Work ProcessGroupWire::all_reduce(const BufferView& buffer, const AllReduceOptions& options) {
  comm::check_buffer(*this, "all_reduce", buffer);
  comm::check_weight(*this, buffer, options);
  Task work = task_of(OpKind::all_reduce, buffer, buffer, buffer.count);
  work.record.op = options.op;
  work.record.weighted = options.weight.has_value();
  work.record.weight = options.weight.value_or(0);
  return start(std::move(work));
}

Work ProcessGroupWire::broadcast(const BufferView& buffer, int root) {
  comm::check_buffer(*this, "broadcast", buffer);
  comm::check_rank(*this, "broadcast", "root", root);
  Task work = task_of(OpKind::broadcast, buffer, buffer, buffer.count);
  work.record.root = root;
  return start(std::move(work));
}

Work ProcessGroupWire::reduce(const BufferView& buffer, int root, ReduceOp op) {
  comm::check_buffer(*this, "reduce", buffer);
  comm::check_rank(*this, "reduce", "root", root);
  Task work = task_of(OpKind::reduce, buffer, buffer, buffer.count);
  work.record.root = root;
  work.record.op = op;
  return start(std::move(work));
}

Work ProcessGroupWire::all_gather(const BufferView& input, const BufferView& output) {
  comm::check_parts(*this, "all_gather", input, output, rank());
  return start(task_of(OpKind::all_gather, input, output, input.count));
}

Work ProcessGroupWire::reduce_scatter(const BufferView& input, const BufferView& output, ReduceOp op) {
  comm::check_parts(*this, "reduce_scatter", output, input, rank());
  Task work = task_of(OpKind::reduce_scatter, input, output, output.count);
  work.record.op = op;
  return start(std::move(work));
}

Work ProcessGroupWire::gather(const BufferView& input, const BufferView& output, int root) {
  comm::check_rank(*this, "gather", "root", root);
  if (rank() == root) {
    comm::check_parts(*this, "gather", input, output, root);
  } else {
    comm::check_buffer(*this, "gather", input);
  }
  Task work =
      task_of(OpKind::gather, input, rank() == root ? output : BufferView(nullptr, 0, input.dtype), input.count);
  work.record.root = root;
  return start(std::move(work));
}

Work ProcessGroupWire::scatter(const BufferView& input, const BufferView& output, int root) {
  comm::check_rank(*this, "scatter", "root", root);
  if (rank() == root) {
    comm::check_parts(*this, "scatter", output, input, root);
  } else {
    comm::check_buffer(*this, "scatter", output);
  }
  Task work =
      task_of(OpKind::scatter, rank() == root ? input : BufferView(nullptr, 0, output.dtype), output, output.count);
  work.record.root = root;
  return start(std::move(work));
}

Work ProcessGroupWire::all_to_all(const BufferView& input, const BufferView& output) {
  comm::check_exchange(*this, input, output);
  return start(task_of(OpKind::all_to_all, input, output, input.count / size()));
}

Work ProcessGroupWire::barrier() { return start(task_of(OpKind::barrier, {}, {}, 0)); }

Work ProcessGroupWire::message(bool is_send, const BufferView& buffer, int peer, int tag) {
  const std::string_view operation = is_send ? "send" : "recv";
  comm::check_buffer(*this, operation, buffer);
  comm::check_rank(*this, operation, is_send ? "destination" : "source", peer);
  comm::check_tag(*this, operation, tag);
  Parcel parcel;
  parcel.is_send = is_send;
  parcel.buffer = buffer;
  parcel.peer = peer;
  parcel.tag = tag;
  return Work(engine_->start(std::move(parcel)), context_.timeout);
}

Work ProcessGroupWire::send(const BufferView& buffer, int destination, int tag) {
  return message(true, buffer, destination, tag);
}

Work ProcessGroupWire::recv(const BufferView& buffer, int source, int tag) {
  return message(false, buffer, source, tag);
}

void ProcessGroupWire::abort(const std::string& cause) {
  engine_->abort(cause.empty() ? "aborted without a cause" : cause);
}

}  // namespace lockstep::wire
