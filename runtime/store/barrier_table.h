// Barriers of a store: who is in which, and who may leave.
//
// One thread, or under its owner's lock. Knows neither time nor sockets; waiters are numbers that mean something to the
// caller. All ranks of a world arrive at a name, then all are released at once and the name is free for the next time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace lockstep::store {

class BarrierTable {
 public:
  using WaiterId = std::uint64_t;

  struct Arrival {
    bool complete = false;     // it was the last: it may go on, and take_released() tells the others
    std::string refusal = {};  // if not empty, why it can't be in this barrier; nothing has changed
  };
  // `waiter`, which must be in no barrier, arrives. Ranks that are named are those of RANK_BARRIER; PyTorch's BARRIER
  // counts heads, its rank is nothing, and its names are apart.
  Arrival arrive(WaiterId waiter, std::string_view name, std::optional<std::int64_t> rank, std::int64_t world_size);
  // Forgets a waiter, as if it had not come; nothing if it is in no barrier.
  void leave(WaiterId waiter);
  // The same for one whose time is over. The barrier is not complete without it either, but it is not among those whom
  // the others miss, unless nobody else is: they are told who never came.
  void give_up(WaiterId waiter);
  bool contains(WaiterId waiter) const { return places_.contains(waiter); }
  // The ranks that the barrier lacks in which `waiter` is, in order, the first kListed of them, and how many there are
  // in all. Many may ask one after the other: they share the work.
  struct Missing {
    static constexpr std::size_t kListed = 64;
    std::vector<std::int64_t> ranks;
    std::int64_t count = 0;
  };
  Missing missing(WaiterId waiter);
  // The waiters, but for who came last, that were released since the last call. They are in no barrier any more.
  std::vector<WaiterId> take_released();

 private:
  struct Barrier {
    std::int64_t world_size = 0;
    std::map<std::int64_t, WaiterId> arrived;  // by rank; of heads, by the waiter's own number
    std::set<std::int64_t> gave_up;
    std::optional<Missing> missing = {};  // as long as nobody comes or leaves
  };
  struct Name {
    bool ranked;
    std::string text;
    bool operator==(const Name&) const = default;
  };
  struct Hash {
    std::size_t operator()(const Name& name) const { return std::hash<std::string>()(name.text) + name.ranked; }
  };
  using Barriers = std::unordered_map<Name, Barrier, Hash>;
  static Missing find_missing(bool ranked, const Barrier& barrier);

  struct Place {
    Barriers::pointer barrier;  // to an element of barriers_, which stays where it is
    std::int64_t rank;
  };

  void take_out(std::unordered_map<WaiterId, Place>::iterator place);

  Barriers barriers_;
  std::unordered_map<WaiterId, Place> places_;
  std::vector<WaiterId> released_;
};

}  // namespace lockstep::store
