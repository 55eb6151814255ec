// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/nccl/call_list.h"

namespace lockstep::nccl {

void CallList::add(const std::shared_ptr<NcclCollective>& collective) {
  MutexLock lock(mutex_);
  collective->sequence = ++last_;
  flight_record_.called(collective->sequence, collective->args.record);
  calls_.push_back(collective);
}

void CallList::add(const std::shared_ptr<NcclMessage>& message) {
  MutexLock lock(mutex_);
  MessageCounts& counts = messages_[message->p2p.peer];
  message->number = ++(message->p2p.is_send ? counts.sent : counts.received);
  calls_.push_back(message);
}

std::map<int, MessageCounts> CallList::messages() const {
  MutexLock lock(mutex_);
  return messages_;
}

std::shared_ptr<PendingCall> CallList::front() const {
  MutexLock lock(mutex_);
  return calls_.empty() ? nullptr : calls_.front();
}

std::string CallList::describe_current() const {
  MutexLock lock(mutex_);
  for (auto call = calls_.rbegin(); call != calls_.rend(); ++call) {
    if ((*call)->has_reached(PendingCall::State::launching)) return (*call)->describe();
  }
  return calls_.empty() ? "no collective" : calls_.front()->describe();
}

CallList::Counts CallList::not_handed_on() const {
  Counts result;
  MutexLock lock(mutex_);
  // They end in their order: what is waited for covers what came before it.
  for (auto call = calls_.rbegin(); call != calls_.rend(); ++call) {
    // Relaxed: wait_on() and the end of the group run on the group's one thread.
    if ((*call)->handed_on.load(std::memory_order_relaxed)) break;
    ++((*call)->sequence != 0 ? result.collectives : result.messages);
  }
  return result;
}

std::vector<std::shared_ptr<void>> CallList::ready_events() const {
  std::vector<std::shared_ptr<void>> events;
  MutexLock lock(mutex_);
  for (const auto& call : calls_) {
    if (call->ready && call->has_reached(PendingCall::State::launching)) events.push_back(call->ready);
  }
  return events;
}

void CallList::pop(PendingCall& call) {
  if (call.sequence != 0) flight_record_.done(call.sequence);
  // Released behind finish(): a waiter that reads `done` reads the user's memory as it was written.
  call.state.store(PendingCall::State::done, std::memory_order_release);
  MutexLock lock(mutex_);
  if (!calls_.empty() && calls_.front().get() == &call) calls_.pop_front();
}

void CallList::clear() {
  MutexLock lock(mutex_);
  calls_.clear();
}

}  // namespace lockstep::nccl
