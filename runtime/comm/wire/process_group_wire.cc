// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/wire/process_group_wire.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>

#include "lockstep/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/comm/arena_agreement.h"

namespace lockstep::wire {
namespace {

using comm::CollectiveArgs;
using comm::OpKind;

// Maps new memory pages, which are filled with zeros and aligned to pages. The kernel allocates each page when the page
// is first used.
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
                                                       const ThreadMaker& make_thread,
                                                       std::unique_ptr<HostMemory> host_memory) {
  const bool is_of_job = context.roster.front().group.empty();
  if (host_memory && context.identity.rank == 0 && is_of_job) {
    log_info("{}: shm within, {} between", describe(hosts_of(context.roster, 0)), backend);
  }
  auto engine = std::make_shared<WireEngine>(std::move(wire), context, std::move(host_memory));
  engine->open(make_thread, deadline, context.check);
  return std::make_shared<ProcessGroupWire>(std::move(backend), std::move(context), std::move(engine));
}

ProcessGroupWire::ProcessGroupWire(std::string backend, GroupContext context, std::shared_ptr<WireEngine> engine)
    : ProcessGroupBase(std::move(context)), backend_(std::move(backend)), engine_(std::move(engine)) {}

ProcessGroupWire::~ProcessGroupWire() { close(*engine_); }

Work ProcessGroupWire::start(CollectiveArgs args) { return Work(engine_->start(std::move(args)), timeout()); }

Arena ProcessGroupWire::allocate(std::size_t bytes) {
  check_arena_bytes(bytes);
  start(args_of(OpKind::allocate, {}, {}, static_cast<std::int64_t>(bytes))).wait();
  WireEngine::Allocated allocated;
  if (engine_->shares_memory()) {
    allocated = engine_->take_allocated();
  } else {
    try {
      allocated.arena = map_memory(bytes);
    } catch (const SystemError& error) {
      allocated.problem = error.what();
    }
  }
  // All ranks exchange the result.
  comm::agree_on_arena(*this, bytes, allocated.problem);
  return allocated.arena;
}

Work ProcessGroupWire::start_message(const comm::P2pOp& p2p) { return Work(engine_->start(WireP2pOp{p2p}), timeout()); }

void ProcessGroupWire::abort(const std::string& cause) {
  require_owner("abort");
  engine_->abort(cause.empty() ? "aborted without a cause" : cause);
}

}  // namespace lockstep::wire
