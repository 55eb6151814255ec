// What the members of a shared-memory group and their outstanding works share: the queue of started collectives.
//
// Progress is made by the caller alone: every start, poll and wait pushes what has been started before, in order. There
// is no thread. Threads: the group's one thread, except abort() of the session.
#pragma once

#include <array>
#include <memory>

#include "runtime/comm/shm/arena.h"
#include "runtime/comm/shm/collective.h"
#include "runtime/comm/shm/mailbox.h"
#include "runtime/comm/shm/session.h"

namespace lockstep::shm {

class Operation;

class Engine : public std::enable_shared_from_this<Engine> {
 public:
  // `on_throw`: as Session has it.
  Engine(std::shared_ptr<Mapping> control, rendezvous::Roster roster, int rank,
         std::function<void(const Cause&)> on_throw = {})
      : session_(std::move(control), std::move(roster), rank, std::move(on_throw)),
        arenas_(rank, session_.size()),
        mailbox_(session_, arenas_),
        sources_(static_cast<std::size_t>(session_.size())),
        destinations_(sources_.size()) {}

  Session& session() { return session_; }
  ArenaTable& arenas() { return arenas_; }
  Mailbox& mailbox() { return mailbox_; }
  // True if this rank's part of a collective is not done.
  bool has_collectives() const { return done_ < last_; }
  // Of the collective that was started last; 0 at first.
  std::uint64_t last_sequence() const { return last_; }

  // Publishes a collective and gives it a push. Blocks only while kRing collectives are in flight.
  std::shared_ptr<Operation> start(Task task, std::chrono::nanoseconds timeout);
  // Pushes everything. Returns what the oldest collective whose part here is not done waits for.
  Blocker push();
  // What push() does, and checks that the group is open and whole.
  void progress();

  // The group's destructor: says goodbye, or aborts if this rank's part of something is not done.
  void close();
  // Aborts because the group's owner is being unwound.
  void close_unwinding();
  bool closed() const { return closed_; }
  // Throws if the group has been destroyed or has failed.
  void check() const;

 private:
  friend class Operation;
  Floor floor() { return {session_, arenas_, tick_, sources_, destinations_, scratch_}; }
  // Aborts for what this rank has done.
  void abort_for(std::string text);
  // Blocks until slot `sequence` of the ring is free on every rank.
  void wait_for_slot(std::uint64_t sequence, std::chrono::nanoseconds timeout);

  Session session_;
  ArenaTable arenas_;
  Mailbox mailbox_;
  std::array<std::shared_ptr<Operation>, kRing> ring_;
  std::uint64_t last_ = 0;  // started
  std::uint64_t done_ = 0;  // this rank's part is done
  std::uint64_t tick_ = 0;
  std::vector<const std::byte*> sources_;
  std::vector<std::byte*> destinations_;
  Scratch scratch_;
  std::uint64_t free_until_ = kRing;  // the last sequence whose slot is known to be free
  bool closed_ = false;
};

// A started collective, as its Work sees it.
class Operation final : public WorkState, public Awaited {
 public:
  Operation(std::shared_ptr<Engine> engine, Task task, std::uint64_t sequence)
      : engine_(std::move(engine)), collective_(std::move(task), sequence) {}

  bool poll() override { return push().done(); }
  void wait(const Deadline& deadline) override;
  std::int64_t combined(std::size_t word) const override { return collective_.words()[word]; }

  Blocker push() override;
  bool is_alone() const override { return !engine_->mailbox().pending(); }
  std::string describe() const override { return collective_.describe(); }
  std::int64_t sequence() const override { return static_cast<std::int64_t>(collective_.sequence()); }
  Missing missing() const override;

  Collective& collective() { return collective_; }

 private:
  std::shared_ptr<Engine> engine_;
  Collective collective_;
  bool done_ = false;
};

// A send or recv, as its Work sees it.
class MessageWork final : public WorkState, public Awaited {
 public:
  MessageWork(std::shared_ptr<Engine> engine, std::shared_ptr<Parcel> parcel)
      : engine_(std::move(engine)), parcel_(std::move(parcel)) {}

  bool poll() override;
  void wait(const Deadline& deadline) override;

  Blocker push() override;
  bool is_alone() const override {
    return !engine_->has_collectives() && !engine_->mailbox().waits_for_others_than(parcel_->peer);
  }
  std::string describe() const override { return parcel_->describe(); }
  Missing missing() const override;

 private:
  std::shared_ptr<Engine> engine_;
  std::shared_ptr<Parcel> parcel_;
};

}  // namespace lockstep::shm
