// Collectives and messages as the program's thread starts them and waits for them.
#include "runtime/comm/failure/messages.h"
#include "runtime/comm/wire/engine.h"

namespace lockstep::wire {

// A send or recv, as its Work sees it.
class Message final : public WorkState {
 public:
  Message(std::shared_ptr<Engine> engine, std::shared_ptr<Parcel> parcel)
      : engine_(std::move(engine)), parcel_(std::move(parcel)) {}

  bool poll() override {
    {
      MutexLock lock(engine_->mutex_);
      if (parcel_->done) return true;
    }
    if (engine_->ending_.failure().happened()) engine_->ending_.raise();
    return false;
  }
  void wait(const Deadline& deadline) override {
    const Engine::Outcome outcome = engine_->wait_for(deadline, [&] { return parcel_->done; });
    if (outcome == Engine::Outcome::failed) engine_->ending_.raise();
    if (outcome == Engine::Outcome::done) return;
    Engine::Missing progress{{parcel_->peer}, {}};
    {
      MutexLock lock(engine_->mutex_);
      progress.text = engine_->post_office_.progress_of(*parcel_);
    }
    engine_->time_out(parcel_->describe(), progress, deadline);
  }

 private:
  std::shared_ptr<Engine> engine_;
  std::shared_ptr<Parcel> parcel_;
};

void Engine::check() const {
  if (ending_.failure().happened()) ending_.raise();
  MutexLock lock(mutex_);
  if (closed_) comm::throw_closed(who(rank_));
}

std::shared_ptr<Collective> Engine::start(comm::Task task) {
  check();
  std::shared_ptr<Collective> collective;
  {
    MutexLock lock(mutex_);
    collective = std::make_shared<Collective>(shared_from_this(), std::move(task), ++last_);
    queue_.push_back(collective);
  }
  wire_->wake();
  return collective;
}

std::shared_ptr<WorkState> Engine::start(Parcel parcel) {
  check();
  std::shared_ptr<Parcel> started;
  {
    MutexLock lock(mutex_);
    started = post_office_.start(std::move(parcel));
  }
  wire_->wake();
  return std::make_shared<Message>(shared_from_this(), std::move(started));
}

template <typename Done>
Engine::Outcome Engine::wait_for(const Deadline& deadline, Done done) {
  comm::Progress& progress = comm::Progress::of_process();
  for (;;) {
    // Asleep before it looks: who rings after that is not missed.
    const comm::Asleep asleep(progress.bell().on_bell);
    const std::uint64_t rung = progress.bell().bell.load(std::memory_order_seq_cst);
    {
      MutexLock lock(mutex_);
      if (done()) return Outcome::done;
    }
    if (ending_.failure().happened()) return Outcome::failed;
    if (deadline.expired()) return Outcome::late;
    progress.push_all_but(nullptr);
    progress.sleep(rung, deadline.remaining());
  }
}

void Engine::time_out(const std::string& what, const Missing& missing, const Deadline& deadline) {
  propose(Cause::Kind::timeout, missing.ranks.size() == 1 ? missing.ranks.front() : -1,
          comm::timeout_text(what, who(rank_), deadline, missing.text));
  ending_.raise();
}

bool Collective::poll() {
  if (done_.load(std::memory_order_acquire)) return true;
  if (!engine_->ending_.failure().happened()) return false;
  if (done_.load(std::memory_order_acquire)) return true;  // it came first
  engine_->ending_.raise();
}

void Collective::wait(const Deadline& deadline) {
  const Engine::Outcome outcome = engine_->wait_for(deadline, [&] { return done_.load(std::memory_order_acquire); });
  if (outcome == Engine::Outcome::failed) engine_->ending_.raise();
  if (outcome == Engine::Outcome::done) return;
  Engine::Missing missing;
  {
    MutexLock lock(engine_->mutex_);
    missing = engine_->missing(*this);
  }
  engine_->time_out(describe(), missing, deadline);
}

Engine::Missing Engine::missing(const Collective& collective) const {
  const auto others = [this](const char* what, const std::vector<int>& ranks) {
    Missing result;
    for (const int rank : ranks) {
      if (rank == rank_) continue;
      result.text += (result.ranks.empty() ? what : ", ") + who(rank);
      result.ranks.push_back(rank);
    }
    return result;
  };
  Missing absent = others("not arrived: ", roll_call_.absent(collective.sequence_));
  if (!absent.ranks.empty()) return absent;
  Missing awaited = others("all have arrived; data is still on its way to or from ", wire_->awaited());
  if (awaited.ranks.empty()) awaited.text = "all have arrived, and their data is still on its way";
  return awaited;
}

}  // namespace lockstep::wire
