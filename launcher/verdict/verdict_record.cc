// SPDX-License-Identifier: Apache-2.0
#include "launcher/verdict/verdict_record.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>

#include "launcher/base/system.h"
#include "launcher/output/log_folder.h"
#include "lockstep/base/error.h"
#include "runtime/base/regular_file.h"
#include "runtime/base/signal_name.h"

namespace lockstep::launcher {
namespace {

using Json = nlohmann::ordered_json;

const char* outcome_name(VerdictRecord::Outcome outcome) {
  switch (outcome) {
    case VerdictRecord::Outcome::finished: return "finished";
    case VerdictRecord::Outcome::stopped: return "stopped";
    case VerdictRecord::Outcome::failed: return "failed";
    case VerdictRecord::Outcome::host_lost: return "host lost";
  }
  return "";
}

template <typename Number>
Json or_null(Number number) {
  return number < 0 ? Json() : Json(number);
}

Json or_null(const std::string& text) { return text.empty() ? Json() : Json(text); }

Json process_json(const RankFacts& rank, const std::optional<ExitStatus>& ending) {
  return {{"rank", or_null(rank.rank)},
          {"host", or_null(rank.host)},
          {"pid", rank.pid == 0 ? Json() : Json(rank.pid)},
          {"ending", ending ? Json(ending->describe()) : Json()},
          {"exit_code", ending && !ending->by_signal && !ending->has_no_code ? Json(ending->value) : Json()},
          {"signal", ending && ending->by_signal ? Json(signal_name(ending->value)) : Json()}};
}

Json first_json(const VerdictRecord::FirstFailure& first) {
  Json json = process_json(first.rank, first.ending);
  const Cause cause = first.cause.value_or(Cause{});
  json["step"] = or_null(first.step);
  json["bucket"] = or_null(cause.bucket);
  json["cause"] = or_null(cause.text);
  json["reported_by"] = or_null(cause.reporter);
  json["memory_kills"] = first.rank.memory_kills;
  json["log"] = or_null(first.rank.log);
  json["last_lines"] = first.rank.last_lines;
  return json;
}

std::string text_of(const Json& json) { return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n"; }

// Writes `json` to the start's folder and to `log_dir`.
void write_verdict(const std::string& log_dir, int start, const std::string& json, Console& console) {
  try {
    write_file(verdict_file(log_folder(log_dir, start)), json);
    write_file(verdict_file(log_dir), json);
  } catch (const Error& error) {
    console.message(fmt::format("the verdict could not be written to {}: {}; make room, or give another --log-dir",
                                verdict_file(log_dir), error.what()));
  }
}

}  // namespace

std::string as_json(const VerdictRecord& record, const std::string& run_id, int start) {
  Json json = {{"run_id", run_id},
               {"start", start},
               {"outcome", outcome_name(record.outcome)},
               {"exit_code", record.exit_code},
               {"starts_again", record.starts_again},
               {"summary", record.summary},
               {"saved_step", or_null(record.saved_step)},
               {"hint", or_null(record.hint)},
               {"first_failure", record.first ? first_json(*record.first) : Json()},
               {"lost_host", Json()},
               {"left_out_host", or_null(record.left_out_host)},
               {"consequences", Json::array()}};
  if (record.lost_host)
    json["lost_host"] = {{"node_rank", record.lost_host->first}, {"host", record.lost_host->second}};
  for (const RankEnd& rank : record.consequences) {
    Json one = process_json(rank, rank.ending);
    one["killed_by_launcher"] = rank.killed;
    json["consequences"].push_back(std::move(one));
  }
  return text_of(json);
}

std::function<void(const VerdictRecord&)> verdict_writer(const std::string& log_dir, const std::string& run_id,
                                                         int start, Console& console) {
  if (log_dir.empty()) return [](const VerdictRecord&) {};
  const std::string path = verdict_file(log_dir);
  // Another job's verdict must not be read as this one's.
  if (start == 1 && unlink(path.c_str()) != 0 && errno != ENOENT) throw SystemError("remove " + path, errno);
  return [log_dir, run_id, start, &console](const VerdictRecord& record) {
    write_verdict(log_dir, start, as_json(record, run_id, start), console);
  };
}

void end_after_verdict(const std::string& log_dir, int start, int exit_code, const std::string& why, Console& console) {
  if (log_dir.empty()) return;
  std::string text;
  try {
    text = read_regular(verdict_file(log_folder(log_dir, start)), std::size_t{1} << 24);
  } catch (const Error&) {  // it was not written, which has been said, or somebody has removed it
    return;
  }
  Json json = Json::parse(text, nullptr, false);
  if (!json.is_object() || !json["summary"].is_string()) return;
  json["exit_code"] = exit_code;
  json["starts_again"] = false;
  json["summary"] = fmt::format("{}; {}", json["summary"].get<std::string>(), why);
  write_verdict(log_dir, start, text_of(json), console);
}

}  // namespace lockstep::launcher
