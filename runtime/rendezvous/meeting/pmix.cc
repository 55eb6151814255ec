// SPDX-License-Identifier: Apache-2.0
#include "runtime/rendezvous/meeting/pmix.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <atomic>
#include <climits>

#include "lockstep/base/error.h"
#include "runtime/base/mutex.h"
#include "runtime/net/backoff.h"
#include "runtime/rendezvous/meeting/pmix_abi.h"

namespace lockstep::rendezvous {
namespace {

constexpr std::string_view kRemedy =
    "install Open MPI's PMIx library (Debian: libpmix2), start with `lockstep run`, or set LOCKSTEP_BOOTSTRAP=address, "
    "and MASTER_ADDR and MASTER_PORT to rank 0's host and a free port there (mpirun -x), on every rank";

constexpr std::string_view kLibrary = "libpmix.so.2";

std::atomic<int> open_sessions{0};

// Open MPI's server ends a question about a rank that has published nothing after 2 s; it is asked again then.
bool is_not_yet(int status) { return status == pmix::kNotFound || status == pmix::kTimedOut; }

}  // namespace

// A question under way. The library calls back from its own thread, perhaps after the asker has gone, and reads the
// question even after it has called back: so a question lives until the library is shut down.
struct PmixSession::Question {
  Question(const pmix::Process& who, std::string what) : target(who), key(std::move(what)) {}

  static void on_answer(int status, pmix::Value* value, void* context);

  const pmix::Process target;
  const std::string key;

  Mutex mutex;
  Condition arrived;
  bool done GUARDED_BY(mutex) = false;
  int status GUARDED_BY(mutex) = 0;
  std::optional<std::string> text GUARDED_BY(mutex);
  std::optional<std::int64_t> number GUARDED_BY(mutex);
};

void PmixSession::Question::on_answer(int status, pmix::Value* value, void* context) {
  Question& answer = *static_cast<Question*>(context);
  MutexLock lock(answer.mutex);
  answer.status = status;
  if (value != nullptr && value->type == pmix::kString && value->data.string != nullptr) {
    answer.text = value->data.string;
  }
  if (value != nullptr && value->type == pmix::kUint16) answer.number = value->data.uint16;
  if (value != nullptr && value->type == pmix::kUint32) answer.number = value->data.uint32;
  answer.done = true;
  answer.arrived.notify_all();
}

struct PmixSession::Library {
  pmix::Init init = nullptr;
  pmix::Finalize finalize = nullptr;
  pmix::Put put = nullptr;
  pmix::Commit commit = nullptr;
  pmix::GetNb get_nb = nullptr;
  pmix::ErrorString error_string = nullptr;
  pmix::Process self = {};

  std::string text(int status) const { return fmt::format("{} ({})", error_string(status), status); }
  void require(int status, std::string_view call) const {
    if (status != pmix::kSuccess) {
      throw BackendUnavailable(fmt::format("PMIx: {} failed: {}; {}", call, text(status), kRemedy));
    }
  }
};

PmixSession::PmixSession(std::unique_ptr<Library> library) : library_(std::move(library)) { ++open_sessions; }

bool PmixSession::is_any_open() { return open_sessions > 0; }

std::vector<std::string> PmixSession::libraries(const Environment& environment) {
  std::vector<std::string> result = {std::string(kLibrary)};
  for (const char* name : {"PMIX_PREFIX", "OPAL_PREFIX"}) {
    const auto prefix = environment.get(name);
    if (!prefix) continue;
    result.push_back(fmt::format("{}/lib/{}", *prefix, kLibrary));
    result.push_back(fmt::format("{}/lib/openmpi/{}", *prefix, kLibrary));  // in the Python package `openmpi`
  }
  return result;
}

std::unique_ptr<PmixSession> PmixSession::open(const std::vector<std::string>& libraries) {
  void* handle = nullptr;
  std::string library, failure;
  for (auto candidate = libraries.begin(); handle == nullptr && candidate != libraries.end(); ++candidate) {
    library = *candidate;
    // The library stays loaded: its threads and exit handlers outlive a session, and Open MPI may use the same copy.
    handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (handle == nullptr) failure += (failure.empty() ? "" : "; ") + std::string(dlerror());
  }
  if (handle == nullptr) throw BackendUnavailable(fmt::format("PMIx: {}; {}", failure, kRemedy));
  auto loaded = std::make_unique<Library>();
  const auto load = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
    if (function == nullptr) throw BackendUnavailable(fmt::format("PMIx: {} has no {}; {}", library, name, kRemedy));
  };
  load(loaded->init, "PMIx_Init");
  load(loaded->finalize, "PMIx_Finalize");
  load(loaded->put, "PMIx_Put");
  load(loaded->commit, "PMIx_Commit");
  load(loaded->get_nb, "PMIx_Get_nb");
  load(loaded->error_string, "PMIx_Error_string");
  loaded->require(loaded->init(&loaded->self, nullptr, 0), "PMIx_Init");
  return std::unique_ptr<PmixSession>(new PmixSession(std::move(loaded)));
}

PmixSession::~PmixSession() {
  if (!owner_.is_here()) return;
  // Nothing to do about a failure: the server is gone, and with it what there was to say.
  static_cast<void>(library_->finalize(nullptr, 0));
  --open_sessions;
}

int PmixSession::rank() const { return static_cast<int>(library_->self.rank); }

void PmixSession::publish(std::string_view key, std::string_view value) {
  std::string text(value);
  pmix::Value stored{.type = pmix::kString, .data = {.string = text.data()}};
  library_->require(library_->put(pmix::kGlobal, std::string(key).c_str(), &stored), "PMIx_Put");
  library_->require(library_->commit(), "PMIx_Commit");
}

PmixSession::Question* PmixSession::ask(std::uint32_t rank, const std::string& key, const Deadline& deadline) {
  pmix::Process target = library_->self;
  target.rank = rank;
  Question* const answer = questions_.emplace_back(std::make_unique<Question>(target, key)).get();
  const int status = library_->get_nb(&answer->target, answer->key.c_str(), nullptr, 0, Question::on_answer, answer);
  if (status != pmix::kSuccess) {  // refused at once: no call back will come
    if (is_not_yet(status)) return nullptr;
    library_->require(status, "PMIx_Get_nb");
  }
  MutexLock lock(answer->mutex);
  while (!answer->done) {
    if (!answer->arrived.wait_until(answer->mutex, deadline) && !answer->done) return nullptr;
  }
  if (is_not_yet(answer->status)) return nullptr;
  library_->require(answer->status, "PMIx_Get_nb");
  return answer;
}

PmixSession::Job PmixSession::job(const Deadline& deadline) {
  const auto number = [&](std::uint32_t rank, const char* key) -> std::optional<int> {
    Question* const answer = ask(rank, key, deadline);
    if (answer == nullptr) {
      if (!deadline.expired()) return std::nullopt;
      throw Timeout(fmt::format("PMIx: the launcher's server did not send the value of {}, {}; {}", key,
                                deadline.progress(), kRemedy));
    }
    MutexLock lock(answer->mutex);
    if (!answer->number || *answer->number > INT_MAX) return std::nullopt;
    return static_cast<int>(*answer->number);
  };
  return {.size = number(pmix::kWholeJob, pmix::kJobSize),
          .local_size = number(pmix::kWholeJob, pmix::kLocalSize),
          .local_rank = number(library_->self.rank, pmix::kLocalRank)};
}

std::string PmixSession::lookup(int rank, std::string_view key, const Deadline& deadline) {
  // The server holds the answer back until `rank` has published anything at all, so the usual case is one question. A
  // fence before it would make everyone wait for everyone, namelessly.
  const std::string name(key);
  for (net::Backoff backoff;;) {
    if (Question* const answer = ask(static_cast<std::uint32_t>(rank), name, deadline)) {
      MutexLock lock(answer->mutex);
      if (!answer->text)
        throw CorruptData(fmt::format(
            "PMIx: the value that rank {} put at key '{}' is not text; run the same build of lockstep on all ranks",
            rank, name));
      return *answer->text;
    }
    if (!backoff.pause(deadline)) {
      throw Timeout(
          fmt::format("PMIx: rank {} has not said where its store is, {}; look at that rank's output, or set "
                      "LOCKSTEP_TIMEOUT (seconds) if that rank starts later",
                      rank, deadline.progress()));
    }
  }
}

}  // namespace lockstep::rendezvous
