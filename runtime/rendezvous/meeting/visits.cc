#include "runtime/rendezvous/meeting/visits.h"

namespace lockstep::rendezvous {

Visits& Visits::all() {
  static Visits visits;
  return visits;
}

std::shared_ptr<HeldStore> Visits::alive(int rank, const std::string& place) {
  MutexLock lock(mutex_);
  const auto found = held_.find({rank, place});
  return found == held_.end() ? nullptr : found->second.lock();
}

void Visits::keep(int rank, const std::string& place, const std::shared_ptr<HeldStore>& held) {
  MutexLock lock(mutex_);
  std::erase_if(held_, [](const auto& entry) { return entry.second.expired(); });
  held_[{rank, place}] = held;
}

bool Visits::has(int rank, const std::string& token) {
  MutexLock lock(mutex_);
  return tokens_.contains({rank, token});
}

void Visits::add(int rank, const std::string& token) {
  MutexLock lock(mutex_);
  tokens_.insert({rank, token});
}

}  // namespace lockstep::rendezvous
