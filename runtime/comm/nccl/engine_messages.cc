// Messages between two ranks: the program's thread tells of one, the owner thread launches pairs.
#include <fmt/format.h>

#include <atomic>
#include <cstring>

#include "runtime/base/logging.h"
#include "runtime/comm/nccl/engine.h"

namespace lockstep::nccl {

std::shared_ptr<WorkState> Engine::start(std::shared_ptr<Message> message, StreamView compute) {
  check();
  message->prepare(memory_lane(messages_));
  if (message->buffer.device.kind != DeviceKind::cpu) {
    message->ready = runtime_.create_event(context_.device, false);
    runtime_.record(message->ready.get(), compute);
  }
  Posting posting;
  posting.sender = message->is_send ? rank_ : message->peer;
  posting.receiver = message->is_send ? message->peer : rank_;
  posting.is_send = message->is_send;
  posting.tag = message->tag;
  posting.dtype = message->buffer.dtype;
  posting.count = message->buffer.count;
  {
    MutexLock lock(mutex_);
    posting.number = message->number = ++last_message_;
    posted_[posting.number] = message;
    if (message->peer == rank_) take_posting(posting);
    notify();
  }
  if (message->peer != rank_) {
    control_.post(write({EntryKind::message,
                         {posting.sender, posting.receiver, posting.is_send ? 1 : 0, posting.tag,
                          static_cast<std::int64_t>(posting.dtype), posting.count, posting.number}}));
  }
  return std::make_shared<Ticket<Message>>(shared_from_this(), std::move(message));
}

std::shared_ptr<Message> Engine::take_posted(std::int64_t number) {
  const auto found = posted_.find(number);
  if (found == posted_.end()) return nullptr;
  auto message = std::move(found->second);
  posted_.erase(found);
  return message;
}

// A pair that has this rank's side is launched here in its turn; the other side's rank finds it at the same place.
void Engine::take_posting(const Posting& posting) {
  if (posting.sender != rank_ && posting.receiver != rank_) return;
  const auto pair = matches_.add(posting);
  if (!pair) return;
  const Posting& sent = pair->send;
  const Posting& wanted = pair->recv;
  std::shared_ptr<Message> recv = wanted.receiver == rank_ ? take_posted(wanted.number) : nullptr;
  std::shared_ptr<Message> send = sent.sender == rank_ ? take_posted(sent.number) : nullptr;
  if (!pair->fits()) {
    mismatch_ = fmt::format(
        "{} called recv of {} x {} from rank {} with tag {}, but {} sent {} x {}; both sides must "
        "give one size and type",
        who(wanted.receiver), wanted.count, name_of(wanted.dtype), wanted.sender, wanted.tag, who(sent.sender),
        sent.count, name_of(sent.dtype));
    return;
  }
  if (recv) {
    recv->twin = send;
    matched_.push_back(std::move(recv));
  } else if (send) {
    matched_.push_back(std::move(send));
  }
}

bool Engine::step_messages() {
  bool wanted = false;
  std::shared_ptr<Message> next;
  std::optional<std::string> mismatch;
  {
    MutexLock lock(mutex_);
    wanted = messages_wanted_;
    mismatch = mismatch_;
    if (!matched_.empty() && !messages_.launching) next = matched_.front();
  }
  if (mismatch) fail(Cause::Kind::mismatch, -1, *mismatch);
  if (wanted && !messages_.communicator) make_message_communicator();
  if (messages_.communicator && !messages_.is_up) {
    messages_.is_up = is_through(messages_);
    if (messages_.is_up) return true;
  }
  if (messages_.launching) {
    if (messages_.communicator && !is_through(messages_)) return false;
    launched(messages_);
    return true;
  }
  // What goes to oneself needs no communicator, but waits behind what was matched before it.
  if (!next || (next->peer != rank_ && !messages_.is_up)) return false;
  // Nor may it be used before it is up.
  if (messages_.communicator && !messages_.is_up) return false;
  {
    MutexLock lock(mutex_);
    matched_.pop_front();
  }
  messages_.launching = next;
  next->launch(lane(messages_));
  return true;
}

// All ranks make it, as soon as they read that one of them wants to send another something. None waits for it.
void Engine::make_message_communicator() {
  auto communicator = std::make_unique<Communicator>(
      api_,
      CommunicatorOptions{.rank = rank_, .size = size_, .name = "lockstep messages", .max_ctas = knobs_.max_ctas});
  ncclUniqueId id{};
  std::optional<std::string> known;
  {
    MutexLock lock(mutex_);
    known = messages_id_;
  }
  if (!known && rank_ == 0) {
    communicator->call("ncclGetUniqueId", api_.get_unique_id(&id));
    known = std::string(id.internal, sizeof(id.internal));
    control_.post(write({EntryKind::channel, {}, *known}));
  }
  if (!known) return;
  if (known->size() != sizeof(id.internal)) {
    fail(Cause::Kind::mismatch, -1,
         fmt::format("{} got {} bytes as the id of a communicator, which has {}; run one "
                     "version of lockstep on every host",
                     own_name(), known->size(), sizeof(id.internal)));
  }
  std::memcpy(id.internal, known->data(), known->size());
  static std::atomic<bool> warned{false};
  if (knobs_.one_queue && !warned.exchange(true)) {
    log_warn(
        "nccl: CUDA_DEVICE_MAX_CONNECTIONS=1 gives the device one queue for all streams: a message between ranks "
        "may stand behind a collective that waits for it on another rank, for ever; unset it in programs that "
        "send messages beside collectives");
  }
  messages_.communicator = std::move(communicator);
  messages_.communicator->begin(id);
}

}  // namespace lockstep::nccl
