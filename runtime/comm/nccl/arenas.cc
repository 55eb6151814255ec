#include "runtime/comm/nccl/arenas.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "runtime/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/comm/nccl/engine.h"

namespace lockstep::nccl {
namespace {

// A rank's word on an allocation: "n" (NCCL's memory) or "d" (the device's), the numbers it has dropped with a comma
// behind each, a line break, and what went wrong.
struct Word {
  bool is_nccls = false;
  std::string dropped;
  std::string problem;
};

Word word_of(const std::string& text) {
  const std::size_t end = std::min(text.find('\n'), text.size());
  Word word;
  word.is_nccls = text.starts_with('n');
  if (end > 1) word.dropped = text.substr(1, end - 1);
  if (end < text.size()) word.problem = text.substr(end + 1);
  return word;
}

}  // namespace

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
  if (gone.empty()) return;
  engine_.on_owner_thread([&gone](const Lane& lane) {
    for (Given& given : gone) {
      if (given.handle != nullptr) lane.communicator->deregister(given.handle);
      given.memory.reset();
    }
  });
}

void Arenas::take_from_device(std::size_t bytes, std::shared_ptr<void>& memory, bool& is_nccls, std::string& problem) {
  if (bytes == 0) return;
  engine_.on_owner_thread([&](const Lane& lane) {
    const Api& api = lane.communicator->api();
    try {
      void* data = nullptr;
      if (api.has_memory() && api.mem_alloc(&data, bytes) == ncclSuccess && data != nullptr) {
        memory = std::shared_ptr<void>(data, [&api](void* of) {
          if (const auto result = api.mem_free(of); result != ncclSuccess) {
            log_warn("nccl: ncclMemFree: {}", api.describe(result, nullptr));
          }
        });
        is_nccls = true;
      } else {
        memory = lane.runtime.allocate(bytes, lane.stream);
      }
      lane.runtime.zero(memory.get(), bytes, lane.stream);
    } catch (const Error& error) {
      problem = error.what();
    }
  });
}

void Arenas::register_with(ProcessGroup& group, Given& given, std::size_t bytes) {
  std::string problem;
  engine_.on_owner_thread([&](const Lane& lane) {
    try {
      given.handle = lane.communicator->register_memory(given.memory.get(), bytes);
    } catch (const CallFailed& error) {
      problem = error.what();
    }
  });
  std::string reasons;
  const auto problems = all_gather_text(group, problem);
  for (std::size_t r = 0; r < problems.size(); ++r) {
    if (problems[r].empty()) continue;
    reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", group.roster()[r].describe(), problems[r]);
  }
  if (reasons.empty()) return;
  log_warn("nccl: {} bytes are not registered with NCCL, so it copies them once more on its way: {}", bytes, reasons);
  if (given.handle == nullptr) return;
  engine_.on_owner_thread([&](const Lane& lane) { lane.communicator->deregister(given.handle); });
  given.handle = nullptr;
}

Arena Arenas::allocate(ProcessGroup& group, std::size_t bytes) {
  std::shared_ptr<void> memory;
  bool is_nccls = false;
  std::string problem;
  take_from_device(bytes, memory, is_nccls, problem);

  // All tell what came of it, so that all have the arena or none has. Behind this the memory is zero, too.
  const auto texts = all_gather_text(group, fmt::format("{}{}\n{}", is_nccls ? 'n' : 'd', dropped(), problem));
  std::string reasons;
  std::vector<std::string> dropped_by_rank;
  bool all_nccls = true;
  for (std::size_t r = 0; r < texts.size(); ++r) {
    const Word word = word_of(texts[r]);
    all_nccls &= word.is_nccls;
    dropped_by_rank.push_back(word.dropped);
    if (word.problem.empty()) continue;
    reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", group.roster()[r].describe(), word.problem);
  }
  give_back(dropped_by_rank);
  if (!reasons.empty()) throw BackendUnavailable(fmt::format("allocate ({} bytes per rank): {}", bytes, reasons));

  Given given{next_++, {}, memory, nullptr};
  if (all_nccls && engine_.api().has_registration()) register_with(group, given, bytes);
  Arena arena{std::make_shared<std::shared_ptr<void>>(memory), static_cast<std::byte*>(memory.get()), bytes};
  given.owner = arena.owner;
  MutexLock lock(mutex_);
  given_.push_back(std::move(given));
  return arena;
}

void Arenas::deregister_all(const Lane& lane) {
  std::deque<Given> gone;
  {
    MutexLock lock(mutex_);
    gone.swap(given_);
  }
  for (const Given& given : gone) {
    if (given.handle != nullptr) lane.communicator->deregister(given.handle);
  }
}

}  // namespace lockstep::nccl
