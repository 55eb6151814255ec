// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/shm/process_group_shm.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "runtime/comm/arena_agreement.h"
#include "runtime/net/stream.h"

namespace lockstep::shm {
ProcessGroupShm::ProcessGroupShm(GroupContext context, SharedSetup setup)
    : ProcessGroupBase(std::move(context)),
      channels_(std::move(setup.channels)),
      engine_(std::make_shared<ShmEngine>(std::move(setup.control), std::move(setup.bells), roster(), rank(),
                                          this->context().on_throw)) {
  engine_->join_process();
}

ProcessGroupShm::~ProcessGroupShm() { close(*engine_); }

Work ProcessGroupShm::start(CollectiveArgs args) { return Work(engine_->start(std::move(args), timeout()), timeout()); }

Arena ProcessGroupShm::allocate(std::size_t bytes) {
  check_arena_bytes(bytes);
  const Deadline deadline = Deadline::after(timeout());
  const std::size_t wanted = std::max<std::size_t>(bytes, 1);
  const CollectiveArgs agreement = args_of(OpKind::allocate, {}, {}, static_cast<std::int64_t>(bytes));
  const std::string what = comm::describe(agreement.record);
  // First all agree that they allocate, and how much; what each has dropped before is known then. Once all have let go
  // of it, that memory is free to be taken again.
  start(agreement).wait(deadline);
  engine_->forget_dropped();
  start(agreement).wait(deadline);

  const std::size_t file_bytes = ArenaTable::file_bytes(size(), wanted);
  const auto fail = [&](Cause::Kind kind, const Error& error) {
    Session& session = engine_->session();
    session.fail(kind, 0, fmt::format("{} was in {}: {}", session.who(rank()), what, error.what()), last_sequence());
  };
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
      channels_.send_to_all(fd.get(), deadline);
    } else {
      fd = channels_.receive(deadline, [&] {
        engine_->progress();
        engine_->session().check_peers_alive(what);
      });
    }
    if (fd) memory = Mapping::of(std::move(fd), file_bytes);
  } catch (const net::ConnectionClosed& error) {
    fail(Cause::Kind::lost, error);
  } catch (const Timeout& error) {
    fail(Cause::Kind::timeout, error);
  } catch (const Error& error) {
    engine_->session().check();  // a failure of the group is not a problem of this rank's memory
    problem = error.what();
  }
  // Then all tell what came of it.
  comm::agree_on_arena(*this, bytes, problem);
  Arena arena = engine_->add_arena(std::move(memory), wanted);
  arena.bytes = bytes;
  return arena;
}

Work ProcessGroupShm::start_message(const comm::P2pOp& p2p) { return Work(engine_->start(ShmP2pOp{p2p}), timeout()); }

void ProcessGroupShm::abort(const std::string& cause) {
  require_owner("abort");
  Session& session = engine_->session();
  session.abort(session.cause_of(Cause::Kind::aborted, rank(), cause.empty() ? "aborted without a cause" : cause,
                                 last_sequence()));
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
              if (member.beside(first)) continue;
              return fmt::format(
                  "backend 'shm' serves ranks of one host, but {} and {} are {}; run all ranks on one host",
                  first.describe(), member.describe(),
                  member.boot_id == first.boot_id ? "in different networks of one, as containers are"
                                                  : "on different ones");
            }
            if (context.device.kind != DeviceKind::cpu) {
              return fmt::format("backend 'shm' computes on the CPU, this rank's device is {}; use device 'cpu'",
                                 context.device.str());
            }
            return {};
          },
          [](const GroupContext& context, const Deadline& deadline) -> std::shared_ptr<ProcessGroup> {
            SharedSetup setup = set_up(context, deadline);
            return std::make_shared<ProcessGroupShm>(context, std::move(setup));
          }};
}

}  // namespace lockstep::shm
