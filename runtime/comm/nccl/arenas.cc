// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/nccl/arenas.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <iterator>

#include "lockstep/base/error.h"
#include "lockstep/base/owner_process.h"
#include "runtime/base/logging.h"
#include "runtime/comm/arena_agreement.h"
#include "runtime/comm/nccl/detachable_call.h"
#include "runtime/comm/nccl/nccl_engine.h"

namespace lockstep::nccl {
namespace {

// Memory that goes back once the device is through with it: see release_behind_device(). Where the device is stuck, the
// engine could not abort, and NCCL may use the memory for ever.
std::shared_ptr<void> released_behind_device(const std::weak_ptr<NcclEngine>& engine, DeviceId device, void* data,
                                             std::function<void()> release) {
  return {data, [engine, device, release = std::move(release), owner = OwnerProcess()](void*) mutable {
            if (!owner.is_here()) {  // a forked child must not touch the device
              static_cast<void>(new std::function<void()>(std::move(release)));
              return;
            }
            if (const auto alive = engine.lock(); alive && alive->device_is_stuck()) {
              log_warn(
                  "nccl: this process keeps an arena's memory on {}, since the kernels that use the memory have not "
                  "ended; end the process to free it",
                  device.str());
              static_cast<void>(new std::function<void()>(std::move(release)));  // it holds what may not go back
              return;
            }
            release_behind_device(device, std::move(release));
          }};
}

// Those that could not be, and why the first of them.
std::vector<void*> deregister(const std::vector<void*>& handles, const LaunchContext& context,
                              std::exception_ptr& error) {
  std::vector<void*> registered;
  for (void* const handle : handles) {
    try {
      context.communicator->deregister(handle);
    } catch (const std::exception&) {
      registered.push_back(handle);
      if (!error) error = std::current_exception();
    }
  }
  return registered;
}

}  // namespace

bool Arenas::none_given() {
  MutexLock lock(mutex_);
  return given_.empty();
}

std::string Arenas::dropped() {
  MutexLock lock(mutex_);
  std::string result;
  for (const Given& given : given_) {
    if (given.owner.expired()) result += fmt::format("{},", given.number);
  }
  return result;
}

void Arenas::give_back(const std::vector<std::string>& dropped_by_rank) {
  std::vector<Given> gone;
  {
    MutexLock lock(mutex_);
    for (auto given = given_.begin(); given != given_.end();) {
      const std::string number = fmt::format(",{},", given->number);
      bool by_all = true;
      for (const std::string& numbers : dropped_by_rank) by_all &= ("," + numbers).find(number) != std::string::npos;
      if (by_all) gone.push_back(std::move(*given));
      given = by_all ? given_.erase(given) : std::next(given);
    }
  }
  std::vector<void*> handles;
  for (const Given& given : gone) {
    if (given.handle != nullptr) handles.push_back(given.handle);
  }
  if (handles.empty()) return;
  struct Outcome {
    std::vector<void*> registered;  // still
    std::exception_ptr error;
  };
  const auto outcome = std::make_shared<Outcome>();
  try {
    engine_.call_nccl("the end of a registration", [handles, outcome](const LaunchContext& context) {
      outcome->registered = deregister(handles, context, outcome->error);
    });
  } catch (...) {
    keep(std::move(gone), handles);  // it may still be under way
    throw;
  }
  if (!outcome->error) return;
  keep(std::move(gone), outcome->registered);
  std::rethrow_exception(outcome->error);
}

// Memory that NCCL knows must not go back.
void Arenas::keep(std::vector<Given> gone, const std::vector<void*>& registered) {
  MutexLock lock(mutex_);
  for (Given& given : gone) {
    if (std::find(registered.begin(), registered.end(), given.handle) != registered.end()) {
      given_.push_back(std::move(given));
    }
  }
}

// By call_nccl(), which has a deadline: a call of the driver has none. That it may wait for the device holds up nothing
// that the device waits for: all that the group has started came before it, and has ended.
Arenas::Taken Arenas::take_from_device(std::size_t bytes) {
  const auto taken = std::make_shared<Taken>();
  if (bytes == 0) return *taken;
  engine_.call_nccl("an allocation", [engine = engine_.weak_from_this(), taken, bytes](const LaunchContext& context) {
    const DeviceId device = context.stream.device;
    const Api& api = context.communicator->api();
    try {
      void* data = nullptr;
      if (api.mem_alloc(&data, bytes) == ncclSuccess && data != nullptr) {
        taken->memory = released_behind_device(engine, device, data, [&api, data] {
          if (const auto result = api.mem_free(data); result != ncclSuccess) {
            log_warn("nccl: ncclMemFree: {}", api.describe(result, nullptr));
          }
        });
        taken->is_nccls = true;
      } else {
        // The cache would give it to the next at once.
        auto block = context.runtime.allocate(bytes, context.stream);
        void* const at = block.get();
        taken->memory =
            released_behind_device(engine, device, at, [block = std::move(block)]() mutable { block.reset(); });
      }
      context.runtime.zero(taken->memory.get(), bytes, context.stream);
    } catch (const Error& error) {
      taken->problem = error.what();
    }
  });
  return std::move(*taken);
}

void* Arenas::register_with(ProcessGroup& group, std::byte* data, std::size_t bytes) {
  struct Registration {
    void* handle = nullptr;
    std::string problem;
  };
  const auto own = std::make_shared<Registration>();
  engine_.call_nccl("a registration", [own, data, bytes](const LaunchContext& context) {
    try {
      own->handle = context.communicator->register_memory(data, bytes);
    } catch (const CallFailed& error) {
      own->problem = error.what();
    }
  });
  std::string reasons;
  const auto problems = all_gather_text(group, own->problem);
  for (std::size_t r = 0; r < problems.size(); ++r) {
    if (problems[r].empty()) continue;
    reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", group.roster()[r].describe(), problems[r]);
  }
  if (reasons.empty()) return own->handle;
  log_warn(
      "nccl: an arena of {} bytes could not be registered with NCCL, so NCCL copies the arena's data once more in each "
      "collective: {}; set NCCL_DEBUG=WARN to read more",
      bytes, reasons);
  if (own->handle != nullptr) {
    engine_.call_nccl("the end of a registration", [handle = own->handle](const LaunchContext& context) {
      context.communicator->deregister(handle);
    });
  }
  return nullptr;
}

Arena Arenas::allocate(ProcessGroup& group, std::size_t bytes) {
  // How many there are is the same on every rank.
  if (!none_given()) give_back(all_gather_text(group, dropped()));
  Taken taken = take_from_device(bytes);

  // All tell what came of it, so that all have the arena or none has: whose memory it is, and what went wrong. Behind
  // this the memory is zero, too.
  bool all_nccls = true;
  comm::agree_on_arena(group, bytes, taken.problem, [&](const std::string& problem) {
    auto words = all_gather_text(group, (taken.is_nccls ? "n" : "d") + problem);
    for (std::string& word : words) {
      all_nccls &= word.starts_with('n');
      word.erase(0, 1);
    }
    return words;
  });

  auto* const data = static_cast<std::byte*>(taken.memory.get());
  Arena arena{std::make_shared<std::shared_ptr<void>>(taken.memory), data, bytes};
  const std::int64_t number = next_++;
  {
    // Before it is registered: whatever happens there, it must not go back while NCCL knows it.
    MutexLock lock(mutex_);
    given_.push_back({number, arena.owner, taken.memory, nullptr});
  }
  if (!all_nccls) return arena;
  void* const handle = register_with(group, data, bytes);
  MutexLock lock(mutex_);
  given_.back().handle = handle;
  return arena;
}

void Arenas::deregister_all(const LaunchContext& context) {
  std::vector<Given> gone;
  {
    MutexLock lock(mutex_);
    gone.assign(std::move_iterator(given_.begin()), std::move_iterator(given_.end()));
    given_.clear();
  }
  std::vector<void*> handles;
  for (const Given& given : gone) {
    if (given.handle != nullptr) handles.push_back(given.handle);
  }
  std::exception_ptr error;
  const auto registered = deregister(handles, context, error);
  if (!error) return;
  keep(std::move(gone), registered);
  std::rethrow_exception(error);
}

}  // namespace lockstep::nccl
