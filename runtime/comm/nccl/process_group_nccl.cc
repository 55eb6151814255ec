// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/nccl/process_group_nccl.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "runtime/comm/nccl/meeting.h"

namespace lockstep::nccl {

std::shared_ptr<ProcessGroup> ProcessGroupNccl::create(const GroupContext& context, const Deadline& deadline) {
  const Options options = options_of(Environment::of_process());
  const Api& functions = api();
  DeviceRuntime& runtime = device_runtime(DeviceKind::cuda);
  const Equipment own{runtime.info(context.device).uuid, functions.version};
  if (const auto problem = compare_equipment(own, context, options.may_share_gpus, deadline); !problem.empty()) {
    throw BackendUnavailable("nccl: " + problem);
  }
  auto engine = std::make_shared<NcclEngine>(functions, runtime, context, options);
  engine->open(deadline);
  return std::make_shared<ProcessGroupNccl>(context, std::move(engine));
}

ProcessGroupNccl::ProcessGroupNccl(GroupContext context, std::shared_ptr<NcclEngine> engine)
    : ProcessGroupBase(std::move(context)),
      engine_(std::move(engine)),
      arenas_(std::make_shared<Arenas>(*engine_)),
      stream_{engine_->context().device, nullptr} {
  engine_->at_the_end([arenas = arenas_](const LaunchContext& launch) { arenas->deregister_all(launch); });
}

ProcessGroupNccl::~ProcessGroupNccl() { close(*engine_); }

void ProcessGroupNccl::check_place(std::string_view operation, const ConstBufferView& buffer) const {
  if (buffer.device.kind == DeviceKind::cpu || buffer.bytes() == 0) return;
  const DeviceId place = engine_->runtime().place_of(buffer.data, buffer.device);
  if (place == buffer.device) return;
  throw InvalidArgument(
      fmt::format("{} on rank {} of {} (nccl): the buffer is said to be on {}, but its memory is {}; give memory of "
                  "that device, or name the memory's device in the buffer",
                  operation, rank(), size(), buffer.device.str(),
                  place.kind == DeviceKind::cpu ? "the host's" : "on " + place.str()));
}

void ProcessGroupNccl::check_program_order(std::string_view operation, int peer, int tag) const {
  if (tag != 0) {
    throw InvalidArgument(
        fmt::format("{} on rank {} of {} (nccl): the tag is {}, but NCCL knows no tags and matches messages in the "
                    "program's order; leave the tag at 0, and receive in the order in which the other rank sends",
                    operation, rank(), size(), tag));
  }
  if (peer == rank()) {
    throw InvalidArgument(fmt::format(
        "{} on rank {} of {} (nccl): a rank can't exchange messages with itself; copy the buffer in the stream instead",
        operation, rank(), size()));
  }
}

// A call that the others have started and this rank could not would make all its later collectives meet the wrong ones.
// Misuse is the program's to mend, and nothing has been started then.
template <typename Start>
Work ProcessGroupNccl::or_abort(Start start) {
  try {
    return Work(start(), timeout());
  } catch (const InvalidArgument&) {
    throw;
  } catch (const std::exception& error) {
    engine_->abort(fmt::format("{}: {}", engine_->own_name(), error.what()));  // nothing where the group has failed
    throw;
  }
}

Work ProcessGroupNccl::start(comm::CollectiveArgs args) {
  return or_abort([&] {
    engine_->runtime().check_not_captured(comm::name_of(args.record.kind), stream_);
    check_place(comm::name_of(args.record.kind), args.input);
    check_place(comm::name_of(args.record.kind), args.output);
    return engine_->start(std::move(args), stream_);
  });
}

Work ProcessGroupNccl::start_message(const comm::P2pOp& p2p) {
  return or_abort([&] {
    const char* const operation = p2p.is_send ? "send" : "recv";
    engine_->runtime().check_not_captured(operation, stream_);
    check_place(operation, p2p.buffer);
    engine_->check();
    check_program_order(operation, p2p.peer, p2p.tag);
    return engine_->start(std::make_shared<NcclMessage>(p2p), stream_);
  });
}

Arena ProcessGroupNccl::allocate(std::size_t bytes) {
  check_arena_bytes(bytes);
  start(args_of(comm::OpKind::allocate, {}, {}, static_cast<std::int64_t>(bytes))).wait();
  return arenas_->allocate(*this, bytes);
}

void ProcessGroupNccl::set_stream(StreamView stream) {
  if (stream.device != device()) {
    throw InvalidArgument(
        fmt::format("set_stream on rank {} of {} (nccl): the stream is of {}, but the group computes on {}; give the "
                    "group a stream of its device",
                    rank(), size(), stream.device.str(), device().str()));
  }
  stream_ = stream;
}

void ProcessGroupNccl::progress() {
  require_owner("progress");
  engine_->check();
  engine_->retire();
}

void ProcessGroupNccl::abort(const std::string& cause) {
  require_owner("abort");
  engine_->abort(cause.empty() ? "aborted without a cause" : cause);
}

}  // namespace lockstep::nccl
