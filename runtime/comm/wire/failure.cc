#include "runtime/comm/wire/failure.h"

#include <utility>

#include "runtime/base/error.h"

namespace lockstep::wire {
namespace {

constexpr std::string_view kKey = "failure";
constexpr std::string_view kMore = " ...";

std::string cut(const std::string& text) {
  if (text.size() <= Failure::kMostText) return text;
  std::size_t end = Failure::kMostText - kMore.size();
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;  // not within a character of UTF-8
  return text.substr(0, end).append(kMore);
}

}  // namespace

Failure::Known Failure::first_in_store(const Known& own) const {
  const std::string proposed = static_cast<char>('0' + static_cast<int>(own.cause)) + own.text;
  const auto first =
      store_.ask([proposed](store::Store& store) { return store.compare_set(kKey, "", proposed); }).value_or("");
  const int cause = first.empty() ? 0 : first.front() - '0';
  if (cause < static_cast<int>(Cause::peer_lost) || cause > static_cast<int>(Cause::mismatch)) return own;
  return {static_cast<Cause>(cause), first.substr(1)};
}

bool Failure::settle(const Known& cause) {
  MutexLock lock(mutex_);
  if (cause_) return false;
  cause_ = cause;
  happened_.store(true, std::memory_order_release);
  return true;
}

void Failure::propose(Cause cause, const std::string& text) {
  if (happened()) return;
  if (settle(first_in_store({cause, cut(text)}))) on_cause_();
}

void Failure::adopt(Cause cause, const std::string& text) {
  if (settle({cause, cut(text)})) on_cause_();
}

void Failure::fail(Cause cause, const std::string& text) {
  propose(cause, text);
  raise();
}

Failure::Known Failure::known() const {
  MutexLock lock(mutex_);
  return *cause_;
}

void Failure::raise() const {
  const Known cause = known();
  switch (cause.cause) {
    case Cause::timeout: throw Timeout(cause.text);
    case Cause::mismatch: throw Mismatch(cause.text);
    case Cause::peer_lost: break;
  }
  throw PeerLost(cause.text);
}

}  // namespace lockstep::wire
